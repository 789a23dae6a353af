"""skep as tools of an MCP client: dispatch, wait, fetch, look."""
