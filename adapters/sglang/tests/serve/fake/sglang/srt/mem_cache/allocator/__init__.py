"""Allocators of slots and pages."""
