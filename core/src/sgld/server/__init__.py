"""The HTTP server: OpenAI's image and video routes on top of a supervised engine. Never torch."""
