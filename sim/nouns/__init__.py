"""What the simulator talks about: frozen, slotted, keyword-only dataclasses on the standard library.

Each noun checks itself in ``__post_init__`` and raises ``InputError`` with the field, the value and
what is legal. Reading and writing them is the business of ``sim.formats``.
"""
