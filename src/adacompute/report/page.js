"use strict";
(function () {
  var data = JSON.parse(document.getElementById("data").textContent);
  var slider = document.getElementById("budget");
  var header = document.querySelector("header");
  function each(selector, change) {
    document.querySelectorAll(selector).forEach(change);
  }
  function show(point, index) {
    var top = slider.getBoundingClientRect().top;
    // The header never becomes lower, and the slider stays where it is while it is moved.
    header.style.minHeight = header.getBoundingClientRect().height + "px";
    each("[data-part]", function (part) {
      part.innerHTML = point.parts[part.dataset.part].map(function (line) {
        return data.lines[line];
      }).join("\n");
    });
    each("[data-index]", function (row) {
      row.classList.toggle("here", Number(row.dataset.index) === index);
    });
    Object.keys(point.markers).forEach(function (figure) {
      Object.keys(point.markers[figure]).forEach(function (layout) {
        each("#" + figure + " ." + layout + " [data-marker]", function (element) {
          var attributes = point.markers[figure][layout][element.dataset.marker];
          Object.keys(attributes).forEach(function (key) {
            element.setAttribute(key, attributes[key]);
          });
        });
      });
    });
    slider.setAttribute("aria-valuetext", point.budget);
    window.scrollBy(0, slider.getBoundingClientRect().top - top);
  }
  slider.addEventListener("input", function () {
    show(data.points[Number(slider.value)], Number(slider.value));
  });
  window.addEventListener("resize", function () {
    header.style.minHeight = "";
  });
  document.documentElement.classList.add("live");
  slider.value = String(data.selected);
})();
