"""Percentiles and confidence intervals over plain numbers."""
