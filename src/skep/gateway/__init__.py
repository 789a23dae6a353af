"""Admission, routing and the proxy in front of the replicas."""
