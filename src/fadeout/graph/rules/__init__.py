"""What is known of each operator: one rule for each kind, registered where it is written.

A rule (:class:`.base.Rule`) says what an operator does to channels, what it costs, and which of its
parameters belong to a channel. To teach Fadeout an operator, write its rule in a file of this folder, under
``@handles(...)``, and nothing else: all files here are read.
"""

import pkgutil
from importlib import import_module

for _found in pkgutil.iter_modules(__path__, __name__ + "."):
    import_module(_found.name)
