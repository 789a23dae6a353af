"""skep: one endpoint for a swarm of agents, on the cards you own."""

__version__ = "0.6.0"
