"""NumPy model of Octet's number formats, scale formulas and dump files.

Written from the public standards, sharing no code with the C++ sources, so that the two can check each other.
Users: scripts/check_dump.py, scripts/grad_error.py, tests/python.
"""
