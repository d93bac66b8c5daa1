"""Connection: requests to servers, with retries, several addresses and circuit breakers."""
