"""Settings come from the environment: the test that starts the processes knows them."""

import json
import os

from coterie.flower import server_app

app = server_app(model="mclr", **json.loads(os.environ["SMALL_APP"]))
