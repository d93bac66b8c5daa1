"""Ray: plan and answer a batch on a Ray cluster."""
