"""Run the shop: `python -m examples.shop`."""

from __future__ import annotations

import os
from pathlib import Path

import uvicorn
from examples.shop.web import make_app

if __name__ == "__main__":
    folder = Path("shop-data").resolve()
    folder.mkdir(exist_ok=True)
    database = os.environ.get("SHOP_DATABASE", f"sqlite:///{folder / 'shop.db'}")
    log = os.environ.get("SHOP_LOG", f"embedded:{folder / 'log'}")
    uvicorn.run(make_app(database, log), host="127.0.0.1", port=int(os.environ.get("SHOP_PORT", "8000")))
