"""Collection: plan, sample and store what a run still lacks."""
