"""From names and cards to launches: plan requests, which cards, exports."""
