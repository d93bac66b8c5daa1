"""Gateway: an OpenAI-compatible endpoint that draws as many samples as are worth their price."""
