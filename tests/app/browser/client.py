"""A light visitor: speaks streamlit's own websocket, draws nothing, and so many fit on one machine."""

import time
import urllib.request
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any, Self

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.sync.client import ClientConnection, connect

from app import launch
from tests.effort import PATIENCE_S

_BOUNDARY = "7d1a"


class Client:
    """One session: ``load`` opens a page, ``turn`` moves a knob, ``upload`` gives files.

    ``elements`` are what the last run drew, in order; ``widgets`` is what the visitor has set so far.
    """

    def __init__(self, port: int, query: str = "") -> None:
        self.home = f"http://{launch.ADDRESS}:{port}"
        self.query = query
        self.elements: list[Any] = []
        self.widgets: dict[str, WidgetState] = {}
        with urllib.request.urlopen(f"{self.home}/_stcore/health", timeout=PATIENCE_S) as answer:
            cookie = SimpleCookie(answer.headers["Set-Cookie"])
        self.token = cookie["_streamlit_xsrf"].value
        self._connection = connect(
            f"ws://{launch.ADDRESS}:{port}/_stcore/stream",
            subprotocols=["streamlit", self.token],  # type: ignore[list-item]
            origin=self.home,  # type: ignore[arg-type]
            additional_headers={"Cookie": f"_streamlit_xsrf={self.token}"},
            max_size=None,
        )
        self.session = ""

    def __enter__(self) -> Self:
        self._socket: ClientConnection = self._connection.__enter__()
        return self

    def __exit__(self, *about: Any) -> None:
        self._connection.__exit__(*about)

    def load(self) -> float:
        """Open the page; seconds until it is whole."""
        return self._run()

    def turn(self, label: str, value: float) -> float:
        """Set a number; seconds until the page is whole again."""
        number = self.find("number_input", label)
        self.widgets[number.id] = WidgetState(id=number.id, double_value=value)
        return self._run()

    def upload(self, label: str, files: Mapping[str, bytes]) -> float:
        """Give files to an uploader; seconds until the page is whole again."""
        place = self.find("file_uploader", label)
        began = time.monotonic()
        request = BackMsg()
        request.file_urls_request.request_id = "files"
        request.file_urls_request.session_id = self.session
        request.file_urls_request.file_names.extend(files)
        self._send(request)
        answer = self._until("file_urls_response").file_urls_response
        assert not answer.error_msg, answer.error_msg
        state = WidgetState(id=place.id)
        for (name, content), urls in zip(files.items(), answer.file_urls, strict=True):
            self._put(urls.upload_url, name, content)
            info = state.file_uploader_state_value.uploaded_file_info.add()
            info.name, info.size, info.file_id = name, len(content), urls.file_id
            info.file_urls.CopyFrom(urls)
        self.widgets[place.id] = state
        self._run()
        return time.monotonic() - began

    def find(self, kind: str, label: str) -> Any:
        """A widget by its label."""
        found = [
            getattr(one, kind)
            for one in self.elements
            if one.WhichOneof("type") == kind and getattr(one, kind).label == label
        ]
        assert len(found) == 1, f"{len(found)} of {kind} {label!r}"
        return found[0]

    def metrics(self) -> dict[str, str]:
        return {
            one.metric.label: one.metric.body for one in self.elements if one.WhichOneof("type") == "metric"
        }

    def errors(self) -> list[str]:
        """Alerts and exceptions on the page."""
        kinds = {one.WhichOneof("type"): one for one in self.elements}
        told = [one.alert.body for one in self.elements if one.WhichOneof("type") == "alert"]
        return told + ([kinds["exception"].exception.message] if "exception" in kinds else [])

    def everything(self) -> str:
        """All that the server sent for the page, as text."""
        return "\n".join(str(one) for one in self.elements)

    def _put(self, path: str, name: str, content: bytes) -> None:
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        request = urllib.request.Request(
            self.home + path,
            data=head.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode(),
            method="PUT",
            headers={
                "Content-Type": f"multipart/form-data; boundary={_BOUNDARY}",
                "X-Xsrftoken": self.token,
                "Cookie": f"_streamlit_xsrf={self.token}",
            },
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.status == 204

    def _run(self) -> float:
        began = time.monotonic()
        request = BackMsg()
        request.rerun_script.query_string = self.query
        request.rerun_script.widget_states.widgets.extend(self.widgets.values())
        self._send(request)
        drawn: dict[tuple[int, ...], Any] = {}
        while True:
            message = self._next()
            kind = message.WhichOneof("type")
            if kind == "new_session":
                self.session = message.new_session.initialize.session_id
            elif kind == "delta" and message.delta.WhichOneof("type") == "new_element":
                drawn[tuple(message.metadata.delta_path)] = message.delta.new_element
            elif kind == "script_finished":
                if message.script_finished == ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                    drawn = {}
                    continue
                break
        self.elements = list(drawn.values())
        return time.monotonic() - began

    def _send(self, message: BackMsg) -> None:
        self._socket.send(message.SerializeToString())

    def _until(self, kind: str) -> ForwardMsg:
        while True:
            message = self._next()
            if message.WhichOneof("type") == kind:
                return message

    def _next(self) -> ForwardMsg:
        data = self._socket.recv(timeout=PATIENCE_S)
        assert isinstance(data, bytes)
        return ForwardMsg.FromString(data)
