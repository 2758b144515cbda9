"""Record the requests of a production server, as a proxy in front of it. `proxy` passes bytes on, unchanged. `tap`
reads them beside it; a tap that fails ends, and the proxy continues. `channel` carries the events to the process
`writer`, which makes shapes of the bodies (`shape`) and writes the `ring`. `freeze` decides when the ring is kept.
`recorder` starts all of it. `from_recording` makes a trace of a recording, with `synthetic` bodies.
"""
