"""Readers: files and objects of users, hubs and packages, as tables and federations."""
