# SPDX-License-Identifier: Apache-2.0
"""python -m fistapruner: the program."""
from ._command import main

main()
