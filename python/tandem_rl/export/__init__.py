"""Exporters and hooks: records of capture format 3 out of frameworks that pickle or keep to themselves what the lab needs
(docs/python.md). Each module runs where its framework lives, and none imports one before it is used."""
