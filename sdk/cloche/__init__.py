"""Cloche: client library and the vocabulary shared by client, server and guest."""
