"""Connection: requests to servers, with retries where they are safe and useful."""
