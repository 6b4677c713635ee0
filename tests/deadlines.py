"""How long a test waits for what has to happen: a test fails for a wrong result, never for a slow machine."""

HANG_S = 300.0
"""Nothing that these tests start takes as long on a machine that is busy; what does hangs."""
PATIENT_S = 10 * HANG_S
"""For a deadline of the product that must not be what ends a wait."""
