//! What a decision says.

/// What becomes of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i8)]
pub enum Outcome {
    /// Deliver in this instance.
    Local,
    /// Send; the conversation was begun here.
    Remote,
    /// Pass on; the conversation came from outside.
    Forward,
    /// Wait in the transmission queue, and match again after a time-out (R18).
    Delayed,
    /// The message is dropped, and not acknowledged.
    Dropped,
}

impl Outcome {
    /// The labels, at the place of their code.
    pub const LABELS: [&'static str; 5] = ["LOCAL", "REMOTE", "FORWARD", "DELAYED", "DROPPED"];

    /// The label of the contract.
    #[must_use]
    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

/// Why the outcome is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i8)]
pub enum Reason {
    /// A route was found and chosen.
    Matched,
    /// A reply to a database of this instance (R7).
    Reply,
    /// The search ended without a route (R17).
    NoRoute,
    /// Routing information is requested from the dynamic routing service (R14).
    RouteRequested,
    /// The chosen routes are LOCAL, and no database takes the message (R26, R7).
    ServiceNotFound,
    /// Message delivery is disabled in the database where the conversation began (R34).
    SenderDisabled,
    /// The message would have to be forwarded, and forwarding is off (R25).
    ForwardingDisabled,
    /// The message came from outside and would go back to this instance (R42).
    RoutingLoop,
    /// TRANSPORT, and the service name holds no address (R23).
    AddressUnusable,
}

impl Reason {
    /// The labels, at the place of their code.
    pub const LABELS: [&'static str; 9] = [
        "matched",
        "reply",
        "no_route",
        "route_requested",
        "service_not_found",
        "sender_disabled",
        "forwarding_disabled",
        "routing_loop",
        "address_unusable",
    ];

    /// The label of the contract.
    #[must_use]
    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}
