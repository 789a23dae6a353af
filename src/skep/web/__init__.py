"""The dashboard: pages that are made on the server, live figures, and everything on screen as
JSON.
"""
