"""The meaning of the usual texts of `transmission_status`: the cause, where to look, and what to do."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ssbroker._text import bracketed


class StatusCause(NamedTuple):
    """The likely cause of a status.

    Attributes:
        cause: Why the message waits.
        remedy: Where to look, and what to do.
        is_routing: Whether the status is about routing; then the current routing decision is more reliable than the status.
    """

    cause: str
    remedy: str
    is_routing: bool = False


class _Pattern(NamedTuple):
    text: re.Pattern[str]
    cause: StatusCause


def _pattern(text: str, cause: str, remedy: str, *, is_routing: bool = False) -> _Pattern:
    return _Pattern(re.compile(text, re.IGNORECASE), StatusCause(cause, remedy, is_routing))


_FORWARDING_REMEDY: Final = (
    "On that instance: ALTER ENDPOINT <endpoint> FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED); or change the route so that it leads to the "
    "instance that has the service."
)
# More specific patterns come first, because many texts contain the same words.
_PATTERNS: Final = (
    _pattern(
        r"lost the arbitration|existing connection with the same peer",
        "the two instances connected to each other at the same time and kept only one of the connections",
        "No action is needed: messages are sent over the remaining connection.",
    ),
    _pattern(
        r"received an error message on this conversation|endpoint state is 'ER'",
        "the conversation has failed: an error message has arrived, and no more messages are sent",
        "RECEIVE the Error message from the queue of the sender's service: its body shows the reason. Then END CONVERSATION, and begin a new "
        "conversation once the cause is corrected.",
    ),
    _pattern(
        r"received an END CONVERSATION message on this conversation",
        "the other side has ended the conversation, and no more messages are sent",
        "RECEIVE the EndDialog message from the queue of the sender's service, then END CONVERSATION. Begin a new conversation for further messages.",
    ),
    _pattern(
        r"system database msdb",
        "messages from other instances cannot be routed, because msdb is not available, its broker is disabled, or it is in single-user mode",
        "Check state_desc, is_broker_enabled and user_access_desc of msdb in sys.databases; then ALTER DATABASE msdb SET ONLINE, SET ENABLE_BROKER (stop SQL "
        "Server Agent first), or SET MULTI_USER.",
    ),
    _pattern(
        r"lacks? CONNECT permission|not have CONNECT permission|permission (?:was )?denied.*endpoint|not permitted to log in",
        "the login of the other instance may not connect to the endpoint",
        "On the instance that refuses the connection: GRANT CONNECT ON ENDPOINT::<endpoint> TO <login>, for the login of the certificate or of the service "
        "account of the other instance; CREATE LOGIN first if this login does not exist.",
    ),
    _pattern(
        r"OS call failed|State 6[67]\b|\b(?:0x)?800903[0-9a-f]{2}\b",
        "Windows authentication between the two endpoints fails: no domain controller or security authority answers, the domains do not trust "
        "each other, the SPN is missing, or the logon is denied (8009030c)",
        "On both instances, check the domain account of SQL Server, the SPN (setspn -L <account>), the clocks, and that a domain controller can be reached. "
        "Without a common domain: AUTHENTICATION = CERTIFICATE on both endpoints.",
    ),
    _pattern(
        r"initializing the private key",
        "the private key of the endpoint's certificate cannot be opened: the master key in master is missing, or the service master key does not open it",
        "In master of the instance whose error log contains this error: CREATE MASTER KEY ENCRYPTION BY PASSWORD; if it exists, OPEN MASTER KEY DECRYPTION BY PASSWORD and "
        "ALTER MASTER KEY ADD ENCRYPTION BY SERVICE MASTER KEY.",
    ),
    _pattern(
        r"certificate bound to (?:the )?database principal.*(?:expired|not yet valid)",
        "the certificate for dialog security has expired or is not valid yet; it belongs to the database principal with this id (1 is dbo), who owns the "
        "service or is the user of the remote service binding",
        "In the user database, look for start_date, expiry_date and principal_id in sys.certificates; CREATE CERTIFICATE for this principal, and give its public key to the "
        "other side.",
    ),
    _pattern(
        r"disabled for use with BEGIN DIALOG",
        "the certificate for dialog security is not active; it belongs to the database principal with this id (1 is dbo), who owns the service or is the user "
        "of the remote service binding",
        "In the user database: ALTER CERTIFICATE <name> WITH ACTIVE FOR BEGIN_DIALOG = ON.",
    ),
    _pattern(
        r"no security certificate bound to (?:the )?database principal",
        "the database principal with this id (1 is dbo), usually the owner of the sender's service, has no certificate for dialog security",
        "In the sender's database: CREATE CERTIFICATE <name> AUTHORIZATION <principal> WITH SUBJECT = '<text>', and give its public key to the other side; or "
        "begin the dialog with ENCRYPTION = OFF.",
    ),
    _pattern(
        r"lookup database principal ID|database user associated with the secure conversation was dropped",
        "the user whose certificate secures the dialog was dropped from the user database after the conversation began",
        "End the conversation. In the user database, use CREATE USER and CREATE CERTIFICATE to create the user and its certificate again, and "
        "correct the owner of the service or the user of the remote service binding. Then begin a new conversation.",
    ),
    _pattern(
        r"State 8[89]\b|certificate.*(?:not found|not valid|expired)|(?:expired|invalid|unknown) certificate|"
        r"certificate associated with this SQL Server instance",
        "the certificate of the endpoint is unknown to the other instance, or has expired",
        "Check expiry_date in sys.certificates of master on both instances, and whether each has the certificate of the other; renew an expired "
        "certificate, and exchange the public keys.",
    ),
    _pattern(
        r"State 84\b|compatible encryption algorithm",
        "the two endpoints have no encryption algorithm in common",
        "Compare ENCRYPTION and ALGORITHM of both endpoints in sys.service_broker_endpoints. Use ALTER ENDPOINT to make them agree, "
        "for example with ENCRYPTION = REQUIRED ALGORITHM AES on both sides.",
    ),
    _pattern(
        r"State 85\b|compatible authentication protocol",
        "the two endpoints have no method of authentication in common",
        "Compare AUTHENTICATION of both endpoints in sys.service_broker_endpoints: both must offer WINDOWS, or both CERTIFICATE.",
    ),
    _pattern(
        r"handshake failed|connection handshake|authentication failed|protocol negotiation error",
        "the endpoints do not agree on authentication or encryption",
        "Look in the error logs of both instances; the log of the target shows the reason. Compare AUTHENTICATION and ENCRYPTION in "
        "sys.service_broker_endpoints, the certificates in master, and GRANT CONNECT ON ENDPOINT.",
    ),
    _pattern(
        r"\b10054\b|network name is no longer available|forcibly closed|reset by peer|network protocol error",
        "the other side closes the connection: usually its endpoint refuses authentication or encryption, or another service uses the port",
        "Look in the error log of the target for a handshake error. Check that the port of the route is the port of its Service Broker "
        "endpoint (sys.tcp_endpoints), and that no firewall or proxy ends the connection.",
    ),
    _pattern(
        r"\b10060\b|timed? ?out|did not properly respond|failed to respond",
        "nothing answers at the address of the route: a firewall drops the connection, or the host is down or wrong",
        "Test the host and port of the route from the sending machine. Open the port in the firewall of the target, for incoming and outgoing "
        "connections, and correct the address with ALTER ROUTE if it is wrong.",
    ),
    _pattern(
        r"\b10061\b|actively refused|connection refused",
        "nothing listens on the port of the route: the endpoint is stopped or uses another port",
        "At the target, check the state and port in sys.tcp_endpoints. Start the endpoint with ALTER ENDPOINT ... STATE = STARTED, or correct the "
        "port with ALTER ROUTE.",
    ),
    _pattern(
        r"\b1100[14]\b|host (?:is )?(?:not )?(?:known|found)|name or service not known|could not be resolved|getaddrinfo",
        "the host name of the route cannot be resolved",
        "Resolve the name on the sending machine; correct the DNS entry, or the address with ALTER ROUTE.",
    ),
    _pattern(
        r"master key",
        "the database has no master key that the service master key opens",
        "In the database that the status names: CREATE MASTER KEY ENCRYPTION BY PASSWORD; if a restored database already has a master key, OPEN MASTER KEY and "
        "ALTER MASTER KEY ADD ENCRYPTION BY SERVICE MASTER KEY.",
    ),
    _pattern(
        r"dialog security|security context could not be retrieved|remote service binding|public key certificate|"
        r"could not (?:find|obtain).*(?:certificate|remote service)|\b28050\b|session key",
        "dialog security cannot be set up: a remote service binding, its user or a certificate is missing on one side",
        "At the sender, check sys.remote_service_bindings for the target service, and that the user of the binding owns a certificate with the "
        "public key of the service's owner; at the target, that the sender's certificate belongs to a user with SEND on the service. Or "
        "begin the dialog with ENCRYPTION = OFF.",
    ),
    _pattern(
        r":\s916\b|is not able to access the database",
        "the target is in another database of the same instance, which does not trust the sender's database",
        "Secure the dialog with certificates and a remote service binding. Or ALTER DATABASE <database of the sender> SET TRUSTWORTHY ON, if its owner may use "
        "the target's database; if this owner is a sysadmin, every db_owner of the sender's database can then become one.",
    ),
    _pattern(
        r"\b15404\b|could not obtain information about Windows NT",
        "the Windows account that owns the database cannot be looked up: it no longer exists, no domain controller answers, or the account of SQL Server may "
        "not read it",
        "ALTER AUTHORIZATION ON DATABASE::<database> TO sa, or to another SQL Server login; or let the account of SQL Server look up the account in the domain.",
    ),
    _pattern(
        r"single[- ]user mode",
        "the database is in single-user mode, in which its broker delivers no messages",
        "Check user_access_desc in sys.databases for the database that the status names; then ALTER DATABASE <database> SET MULTI_USER.",
    ),
    _pattern(
        r"acting as a mirror database|replica of a mirrored database",
        "the database is the mirror of a mirrored pair here, and cannot be opened",
        "The route needs the address of the principal as ADDRESS, and the address of the other partner as MIRROR_ADDRESS, with the BROKER_INSTANCE of the database.",
    ),
    _pattern(
        r"database is in read-only mode",
        "the database of the target is read-only, so its queues accept no messages",
        "Check is_read_only in sys.databases of the target's instance; ALTER DATABASE <database> SET READ_WRITE.",
    ),
    _pattern(
        r"mirroring routes|broker mirroring manager",
        "mirrored routes cannot be used at the moment",
        "Delivery is retried automatically. If the status remains, look in the error log of the sender's instance, and check both addresses of the mirrored route.",
    ),
    _pattern(
        r"participating in an availability group",
        "the database is a secondary replica of an availability group here, or its replica is not available",
        "Check sys.dm_hadr_database_replica_states. The address of the route must be the address of the listener of the availability group, and each "
        "replica needs a started Service Broker endpoint on the same port.",
    ),
    _pattern(
        r"\b15517\b|cannot execute as the database principal|owner.*SID",
        "the owner of the database does not exist as a login here, or is not the one that master records, which is common after a restore",
        "ALTER AUTHORIZATION ON DATABASE::<database> TO sa, in the database that the status names; then the messages are delivered.",
    ),
    _pattern(
        r"endpoint.*(?:disabled|stopped|not (?:been )?(?:started|configured|available))|transport is (?:disabled|not)|\b9666\b|\b9748\b",
        "the Service Broker endpoint of the sending instance is stopped or missing",
        "Check sys.service_broker_endpoints: CREATE ENDPOINT, or ALTER ENDPOINT ... STATE = STARTED. For an ssbroker instance: run "
        "`ssbroker serve`.",
    ),
    _pattern(
        r"broker.{0,40}(?:is |are )?(?:disabled|not enabled)|\b9791\b|\b28012\b|disabled.{0,30}broker|broker.{0,80}currently administratively disabled",
        "the broker of the sender's or the target's database is disabled",
        "Check is_broker_enabled and service_broker_guid in sys.databases. If no other enabled database has the same id: ALTER DATABASE "
        "<database> SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE, which disconnects the users of the database and rolls back their transactions.",
    ),
    _pattern(
        r"database is unavailable|database .{1,150} (?:is not available|cannot be opened because it is offline)",
        "the database of the target is not available",
        "Check state_desc in sys.databases of the target's instance; ALTER DATABASE <database> SET ONLINE, or finish the restore.",
    ),
    _pattern(
        r"queue.{0,40}(?:is |are )?(?:currently )?(?:disabled|off)\b|\b9617\b|\b11219\b|\b9712\b",
        "the queue of the target is disabled, usually after five rollbacks of the transaction that receives (a poison message)",
        "Find the message that cannot be processed and correct the program; then USE <database>; ALTER QUEUE <queue> WITH STATUS = ON.",
    ),
    _pattern(
        r"cannot acknowledge it",
        "at the last attempt, the target received the message but had no route back to the sending service, so it could not acknowledge "
        "the message",
        "In the target database: CREATE ROUTE <name> WITH SERVICE_NAME = N'<service of the sender>', ADDRESS = N'TCP://<host of the "
        "sender>:<port>';",
        is_routing=True,
    ),
    _pattern(
        r"larger than that instance accepts",
        "the message exceeds the size limit of the instance to which the route leads, so neither it nor the messages after it arrive",
        "Increase the limit there (limits.max_message_bytes of `ssbroker serve`, max_message_bytes of ProtocolSettings in Python), or end "
        "the conversation and send the content in smaller messages.",
    ),
    _pattern(
        r"no route or service for it and dropped it",
        "at the last attempt, the instance to which the route led had no route or service for the message",
        "Look there for the event Message Undeliverable, which shows the reason; check the address of the route here, and the services and the "
        "routes of msdb there.",
        is_routing=True,
    ),
    _pattern(
        r"could not forward it and dropped it",
        "the forwarder to which the route leads could not forward the message",
        "Look there for the event Forwarded Message Dropped, which shows the reason; check the routes of its msdb.",
    ),
    _pattern(
        r"\b9792\b",
        "at the last attempt, the route led through an instance whose message forwarding was disabled",
        _FORWARDING_REMEDY,
        is_routing=True,
    ),
    _pattern(
        r"message classification trace",
        "the message could not be classified, and the status does not show the reason",
        "Trace the event Broker:Message Classify in the sender's instance (SQL Server Profiler, or Extended Events): the event shows the reason. Check that "
        "the catalog contains the current routes of the instance.",
    ),
    _pattern(
        r"routing information is currently being updated",
        "at the last attempt, the routes were being changed",
        "Delivery is retried automatically after at most about a minute.",
        is_routing=True,
    ),
    _pattern(
        r"locating routes and security information",
        "the instance has asked the service SQL/ServiceBroker/BrokerConfiguration for a route or a remote service binding, and waits for the answer",
        "Check that the program of this service runs and ends each request with END CONVERSATION, and that the broker of its database is enabled.",
    ),
    _pattern(
        r"invalid address specified",
        "at the last attempt, the address of the route was not valid",
        "Correct the address with ALTER ROUTE: TCP://<host>:<port>. A route to TRANSPORT needs a service name that begins with such an address.",
        is_routing=True,
    ),
    _pattern(
        r"no route|no target broker was found|could not be classified|cannot be classified|classif|service (?:name )?(?:was |could )?not (?:be )?found|"
        r"could not find the target broker|matched a LOCAL route|"
        r"\b97(?:50|70|8[57]|9[356])\b|does not match any route",
        "at the last attempt, no route led to the service",
        "Compare the service name (case counts), broker id and lifetime of the routes with those of the conversation. Delivery is retried "
        "automatically after at most about a minute.",
        is_routing=True,
    ),
    _pattern(
        r"forwarding is (?:disabled|not enabled)",
        "the route leads through an instance whose message forwarding is disabled",
        _FORWARDING_REMEDY,
    ),
    _pattern(
        r"remote service has been dropped",
        "the target service was dropped, or its database replaced, after the conversation began",
        "End the conversation, and begin a new one once the service exists again: look for it in sys.services at the target.",
    ),
    _pattern(
        r"lifetime (?:of the conversation )?has expired|conversation lifetime|dialog lifetime|\b8489\b",
        "the lifetime of the conversation ended before the message was delivered",
        "End the conversation and begin a new one; give it a longer LIFETIME if its messages may have to wait longer.",
    ),
    _pattern(
        r"could not be delivered to the local service",
        "the target is in the same instance, and its queue does not accept the message: it is disabled, or its database is not available",
        "Check is_receive_enabled and is_enqueue_enabled in sys.service_queues and the state of the database in sys.databases; "
        "USE <database>; ALTER QUEUE <queue> WITH STATUS = ON. The error log of the instance contains the error.",
    ),
    _pattern(
        r"\b9753\b|not acknowledged",
        "the message was sent but has not been acknowledged: it was dropped in transit, or the target has no return route for the acknowledgement",
        "Look for events at the target (Message Undeliverable, Message Classify) and at forwarders; check the route from the target back to the "
        "initiator's service.",
    ),
    _pattern(
        r"\b9754\b|cannot be reached|connection attempt failed|target service broker is unreachable",
        "the next hop cannot be reached",
        "Test the host and port of the route from the sending machine, and check that the endpoint of the target is started.",
    ),
    _pattern(
        r"\b9749\b|locked|busy",
        "the target queue or database is busy",
        "Look for a transaction that is left open in the target database. Delivery is retried automatically.",
    ),
    _pattern(
        r"access is denied|permission|not authori[sz]ed|\b8494\b",
        "the sender may not send to the service",
        "At the target: GRANT SEND ON SERVICE::[<service>] TO the user of the sender, or to public without dialog security.",
    ),
)


def cause_of(status: str | None) -> StatusCause | None:
    """Returns the meaning of a status; None if the status is empty or unknown.

    Examples:
        >>> cause_of("Connection attempt failed with error: '10061(No connection could be made because the target actively refused it.)'").cause
        'nothing listens on the port of the route: the endpoint is stopped or uses another port'
    """
    if not status:
        return None
    cause = next((each.cause for each in _PATTERNS if each.text.search(status)), None)
    named = _NAMED_DATABASE.search(status)
    if cause is None or named is None:
        return cause
    return cause._replace(remedy=cause.remedy.replace("<database>", bracketed(named["name"])))


_NAMED_DATABASE: Final = re.compile(r"""\bdatabase (?P<quote>['"])(?P<name>.+?)(?P=quote)""")
"""The database that a status names."""
