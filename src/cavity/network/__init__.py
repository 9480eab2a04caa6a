"""A study over a network: protocol, transport, and the main loops of server and clients."""
