"""The steps that events tell of: Service Broker's event subclasses, by its words."""

from __future__ import annotations

from enum import StrEnum


class Classification(StrEnum):
    """What routing made of a message."""

    LOCAL = "Local"
    REMOTE = "Remote"
    DELAYED = "Delayed"


class ConversationStep(StrEnum):
    """What happened to a conversation."""

    SEND_MESSAGE = "SEND Message"
    END_CONVERSATION = "END CONVERSATION"
    END_CONVERSATION_WITH_ERROR = "END CONVERSATION WITH ERROR"
    BROKER_INITIATED_ERROR = "Broker Initiated Error"
    TERMINATE_DIALOG = "Terminate Dialog"
    RECEIVED_SEQUENCED_MESSAGE = "Received Sequenced Message"
    RECEIVED_END_CONVERSATION = "Received END CONVERSATION"
    RECEIVED_END_CONVERSATION_WITH_ERROR = "Received END CONVERSATION WITH ERROR"
    RECEIVED_BROKER_ERROR = "Received Broker Error Message"
    RECEIVED_END_CONVERSATION_ACK = "Received END CONVERSATION Ack"
    BEGIN_DIALOG = "BEGIN DIALOG"
    DIALOG_CREATED = "Dialog Created"
    END_CONVERSATION_WITH_CLEANUP = "END CONVERSATION WITH CLEANUP"


class GroupStep(StrEnum):
    """What happened to a conversation group."""

    CREATE = "Create"
    DROP = "Drop"


class AcknowledgementStep(StrEnum):
    """Which way an acknowledgement went, and whether a message carried it."""

    MESSAGE_WITH_ACK_SENT = "Message with Acknowledgement Sent"
    ACK_SENT = "Acknowledgement Sent"
    MESSAGE_WITH_ACK_RECEIVED = "Message with Acknowledgement Received"
    ACK_RECEIVED = "Acknowledgement Received"


class ActivationStep(StrEnum):
    """What happened to a reader of a queue."""

    STARTED = "Started"
    ENDED = "Ended"
    ABORTED = "Aborted"


class ConnectionStep(StrEnum):
    """What happened to a connection to another instance."""

    CONNECTING = "Connecting"
    CONNECTED = "Connected"
    CONNECT_FAILED = "Connect Failed"
    CLOSING = "Closing"
    CLOSED = "Closed"
    ACCEPT = "Accept"
    SEND_IO_ERROR = "Send IO Error"
    RECEIVE_IO_ERROR = "Receive IO Error"
