"use strict";
(function () {
  var data = JSON.parse(document.getElementById("data").textContent);
  var slider = document.getElementById("budget");
  var fields = document.querySelectorAll("[data-field]");
  var rows = document.querySelectorAll("[data-level]");
  function setAttributes(element, attributes) {
    Object.keys(attributes).forEach(function (key) {
      element.setAttribute(key, attributes[key]);
    });
  }
  function show(index) {
    var point = data.points[index];
    fields.forEach(function (field) {
      field.textContent = point.text[field.dataset.field];
    });
    rows.forEach(function (row) {
      var level = point.text.level_shares[Number(row.dataset.level)];
      row.querySelectorAll("[data-share]").forEach(function (cell) {
        cell.textContent = level[cell.dataset.share];
      });
      row.querySelectorAll("[data-width]").forEach(function (bar) {
        bar.setAttribute("width", level[bar.dataset.width]);
      });
    });
    ["wide", "narrow"].forEach(function (layout) {
      document.querySelectorAll("#curves ." + layout + " [data-part]").forEach(function (part) {
        setAttributes(part, point.markers[layout][part.dataset.part]);
      });
    });
    slider.setAttribute("aria-valuetext", point.text.budget);
  }
  slider.addEventListener("input", function () {
    show(Number(slider.value));
  });
  document.documentElement.classList.add("live");
  slider.value = String(data.selected);
  show(data.selected);
})();
