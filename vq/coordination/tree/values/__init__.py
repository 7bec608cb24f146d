"""The values of znodes, one module for each area of the tree that ``paths`` shows. No I/O."""
