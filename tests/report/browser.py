"""A small client of headless Chromium: the DevTools protocol over the pipe of --remote-debugging-pipe, standard library only."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

TIMEOUT_S = 20


def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise RuntimeError("headless Chromium is not installed; run scripts/setup.sh --tests")


class Browser:
    """One page. Console messages of level warning and above, uncaught exceptions and blocked loads are in `complaints`."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="octet-chromium-")
        to_browser, self.writer = os.pipe()
        self.reader, from_browser = os.pipe()

        def hand_over():  # the browser reads commands from descriptor 3 and answers on 4; dup first, they may be 3 or 4 themselves
            a, b = os.dup(to_browser), os.dup(from_browser)
            a, b = os.dup2(a, 63), os.dup2(b, 64)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [chromium(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
             "--disable-background-networking", "--hide-scrollbars", "--force-color-profile=srgb", f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=hand_over, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.session, self.complaints, self.events = b"", 0, None, [], []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        os.close(self.writer)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.reader)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _message(self, deadline):
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.reader], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self.reader, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser has gone")
            self.buffer += chunk
        raw, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(raw)

    def _note(self, message):
        method, params = message["method"], message.get("params", {})
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith("file:"):
            self.complaints.append("loads " + params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append("dialog: " + params["message"])

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self._note(answer)

    def js(self, expression):
        """The value of a JavaScript expression (a promise is awaited)."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']['exception'].get('description', result['exceptionDetails'])}")
        return result["result"].get("value")

    def settle(self):
        """Two frames later: resizes and redraws are done."""
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def size(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.settle()

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])
        self.settle()

    def open(self, path, script=True):
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + TIMEOUT_S
        while "Page.loadEventFired" not in self.events:
            message = self._message(deadline)
            if "method" in message:
                self._note(message)
        if script:
            self.settle()

    def key(self, key, shift=False):
        text = key if len(key) == 1 else None
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 if shift else 0, **({"text": text} if text and kind == "keyDown" else {}),
                      windowsVirtualKeyCode={"Tab": 9, "Enter": 13, " ": 32, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35}.get(key, 0))

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def box(self, selector):
        """Scrolls the element into view and gives its left, top, width, height in the window."""
        return self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
                       "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()")

    def click(self, selector):
        left, top, width, height = self.box(selector)
        x, y = left + width / 2, top + height / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)
        self.settle()

    def screenshot(self, path, *selectors, padding=16):
        """The smallest box that holds the elements, and what lies within `padding` pixels around it; without selectors the whole page."""
        boxes = f"{json.dumps(selectors or ['html'])}.map((s) => document.querySelector(s).getBoundingClientRect())"
        left, top, right, bottom = self.js(f"(() => {{ const b = {boxes}; return [Math.min(...b.map((e) => e.left)) + scrollX, Math.min(...b.map((e) => e.top)) + scrollY,"
                                           " Math.max(...b.map((e) => e.right)) + scrollX, Math.max(...b.map((e) => e.bottom)) + scrollY]; })()")
        left, top = max(0, left - padding), max(0, top - padding)
        clip = {"x": left, "y": top, "width": right + padding - left, "height": bottom + padding - top, "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]))
