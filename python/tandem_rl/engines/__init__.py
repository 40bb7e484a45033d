"""Engines that draw tokens and score them behind one protocol (docs/engines.md): `python -m tandem_rl.engines.NAME --model DIR`.
`tandem drift compare` starts them. Each module imports its library when it loads the model, never before."""
