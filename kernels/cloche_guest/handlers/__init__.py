"""HTTP handlers: they translate between requests and services, and decide nothing."""
