"""Hessian 2, a binary format of objects that comes from Java: plain values."""
