"""Report: what people look at: pages, figures and tables made from results."""
