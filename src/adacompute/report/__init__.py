"""Report: pages, figures and tables for people, made from results."""
