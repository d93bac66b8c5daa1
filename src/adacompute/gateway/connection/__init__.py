"""HTTP of clients: sockets, limits on what is sent and how slowly, one request and its reply."""
