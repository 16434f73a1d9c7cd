//! The decision table: the decisions for every routing table, service name and kind of broker id.
//!
//! A perfect hash maps a name in a source to its [`Entry`] (two cache lines), which contains the name, a broker id, and
//! for each kind of broker id a precomputed decision or the next lookup ([`Action`]). Names without an entry share one
//! default entry per source: that of unknown names, i.e. names that no route of the table, no database and no pending
//! request has. Services with several broker ids have one [`Pair`] for each. Anything that does not fit into an entry
//! is a [`Cell`].

use std::ops::Range;

use crate::catalog::{AddressId, NONE, NameId};
use crate::guid::Guid;

/// The source of a conversation: the number of the database in which it started; or, if it comes from another instance,
/// `outside` or `replies`.
pub type Source = u16;

/// A route and its target; in an unfinished action, the next cells ([`Target::cells`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Target {
    pub(crate) route_id: i32,
    /// An address for REMOTE and FORWARD, a database for LOCAL.
    pub(crate) to: u32,
}

/// A precomputed decision, without the target and the ids; or the next lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Action {
    /// The outcome, or a [`Next`].
    pub(crate) outcome: i8,
    pub(crate) reason: i8,
    /// -1 if there is none.
    pub(crate) step: i8,
    pub(crate) flags: u8,
}

/// The next lookup if a decision is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub(crate) enum Next {
    /// The pair of the broker id that the conversation names, if the entry has one; otherwise like `HostDatabase`.
    Pair,
    /// Whether a database with the broker id that the conversation names has the service.
    HostDatabase,
    /// One of several cells, by a pick. A single candidate is a cell that does not fit into the entry.
    Pick,
    /// The table for messages from other instances (R41).
    ReEnter,
    /// The default entry. Used only if that entry can expire, so that no other entry is compiled again.
    Unknown,
    /// The entry has expired.
    Expired,
    /// The name is too long to be compared in the entry.
    LongName,
    /// The rules, with `decide`.
    Rules,
    /// The service name, which is not listed and may begin with an address: the cell at the target is for names that do
    /// not begin with an address, and `decide` handles the others.
    MaybeAddress,
}

/// A decision, finished or not, with everything that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Cell {
    /// The broker id that binds a conversation that names none.
    pub(crate) broker: Guid,
    pub(crate) target: Target,
    pub(crate) mirror: AddressId,
    pub(crate) action: Action,
}

/// The decisions for one service name in one source.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(crate) struct Entry {
    /// The `quarters` of the name; 0 if it has more than 64 bytes.
    pub(crate) chunks: [u128; 4],
    /// The first or only broker id of the service's routes.
    pub(crate) broker: Guid,
    pub(crate) targets: [Target; 2],
    /// When the entry must be compiled again.
    pub(crate) expires: i64,
    /// The `short_key` of source and name. For a name of more than 64 bytes, which is compared again, the length only
    /// has to exceed 64, so that the entry is not mistaken for the entry of a shorter name.
    pub(crate) key: u32,
    /// The actions for a conversation without a broker id, with a different broker id than `broker`, and with `broker`.
    pub(crate) actions: [Action; 3],
    /// For [`Next::Pair`] and [`Next::HostDatabase`]: the cell for an unlisted broker id; the next cell is for the
    /// broker id of a database that has the service.
    pub(crate) unlisted_cells: u32,
    /// The name; `NONE` in a default entry and a free slot.
    pub(crate) service: NameId,
}

/// The decision for a broker id that the routes of an entry name, if they name several; or the database with a broker
/// id that has a service.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Pair {
    pub(crate) broker: Guid,
    pub(crate) target: Target,
    /// The slot of the entry, or [`host_owner`] of the service.
    pub(crate) owner: u32,
    pub(crate) action: Action,
}

/// The owner of the pairs that list the databases with a service.
#[inline]
pub(crate) fn host_owner(service: NameId) -> u32 {
    service | 1 << 31
}

/// The part of a table that is not in its entries.
#[derive(Clone, Debug)]
pub(crate) struct RoutingTable {
    /// The routes without service name and broker id, as positions in `order`.
    pub(crate) wildcards: Range<usize>,
    /// The routes with a service name.
    pub(crate) named: Range<usize>,
    /// The last expiry of the routes to the configuration service; `i64::MIN` if there are none.
    pub(crate) dynamic_until: i64,
    /// Whether a wildcard has the address TRANSPORT.
    pub(crate) has_transport_wildcard: bool,
    /// Whether unknown names share one entry for steps 4 to 7: its routes can expire, and no wildcard is `TRANSPORT`,
    /// whose next hop depends on the name.
    pub(crate) shares_later_steps: bool,
}

impl Next {
    pub(crate) const COUNT: usize = 9;
    /// In the order of their numbers.
    const ALL: [Self; Self::COUNT] = [
        Self::Pair,
        Self::HostDatabase,
        Self::Pick,
        Self::ReEnter,
        Self::Unknown,
        Self::Expired,
        Self::LongName,
        Self::Rules,
        Self::MaybeAddress,
    ];
}

impl Action {
    /// Uses the second target of the entry.
    pub(crate) const SECOND_TARGET: u8 = 0;
    pub(crate) const HAS_ROUTE: u8 = 1;
    /// Binds a conversation that names no broker id to the broker id of the entry or cell.
    pub(crate) const BINDS: u8 = 2;
    /// The target is a next hop.
    pub(crate) const HAS_HOP: u8 = 3;
    /// The target is a database, which binds a conversation that names no broker id.
    pub(crate) const LOCAL: u8 = 4;
    /// The target is the database with the broker id that the conversation names.
    pub(crate) const BY_ID: u8 = 5;
    pub(crate) const HAS_MIRROR: u8 = 6;
    pub(crate) const UNFINISHED: u8 = 7;

    pub(crate) const fn next(next: Next) -> Self {
        Self { outcome: next as i8, reason: 0, step: -1, flags: 1 << Self::UNFINISHED }
    }

    #[inline]
    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags >> flag & 1 == 1
    }

    /// The next lookup; `None` if the decision is finished.
    #[inline]
    pub(crate) fn next_of(self) -> Option<Next> {
        self.has(Self::UNFINISHED).then(|| Next::ALL[self.outcome as usize % Next::COUNT])
    }
}

impl Target {
    /// The cells from `first` on, for [`Next::Pick`] and [`Next::MaybeAddress`]. They share the memory of a route and
    /// its target, because an entry must fit into two cache lines: the first is in `route_id`, their number in `to`.
    pub(crate) fn cells(first: usize, count: usize) -> Self {
        Self { route_id: first as u32 as i32, to: count as u32 }
    }

    /// The range of [`Target::cells`].
    #[inline]
    pub(crate) fn cell_range(self) -> Range<usize> {
        let first = self.route_id as u32 as usize;
        first..first + self.to as usize
    }
}

impl Cell {
    pub(crate) fn next(next: Next, target: Target) -> Self {
        Self { broker: Guid::default(), target, mirror: NONE, action: Action::next(next) }
    }

    /// The cells to pick from.
    #[inline]
    pub(crate) fn candidates(&self) -> Range<usize> {
        self.target.cell_range()
    }
}

impl Entry {
    /// The content of a free slot; it matches no name.
    pub(crate) const NONE: Self = Self {
        chunks: [0; 4],
        broker: Guid([0; 16]),
        targets: [Target { route_id: 0, to: 0 }; 2],
        expires: i64::MIN,
        key: u32::MAX,
        actions: [Action::next(Next::Rules); 3],
        unlisted_cells: 0,
        service: NONE,
    };

    /// Whether the entry belongs to a name of up to 64 bytes, by its `quarters` and `short_key`. Branch-free, and
    /// written out so that it is inlined.
    #[inline]
    #[allow(clippy::needless_bitwise_bool)]
    pub(crate) fn is_of(&self, chunks: &[u128; 4], key: u32) -> bool {
        let difference = (0..4).fold(0, |difference, position| difference | (self.chunks[position] ^ chunks[position]));
        (difference == 0) & (self.key == key)
    }

    pub(crate) fn source(&self) -> Source {
        (self.key >> 16) as u16
    }

    /// Returns the position of the action for a conversation.
    #[inline]
    #[allow(clippy::needless_bitwise_bool)]
    pub(crate) fn action_position(&self, has_broker: bool, broker: Guid) -> usize {
        usize::from(has_broker) + usize::from(has_broker & (self.broker == broker))
    }

    /// Returns the action for a conversation.
    // Called for each conversation that its entry does not finish.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(crate) fn action(&self, has_broker: bool, broker: Guid) -> Action {
        self.actions[self.action_position(has_broker, broker) % 3]
    }

    /// Returns the target of an action.
    #[inline]
    pub(crate) fn target(&self, action: Action) -> Target {
        self.targets[usize::from(action.flags & 1)]
    }

    /// Returns the decision of an action.
    #[inline]
    pub(crate) fn cell(&self, action: Action) -> Cell {
        let target = self.target(action);
        let action = Action { flags: action.flags & !1, ..action };
        Cell { broker: self.broker, target, mirror: NONE, action }
    }
}

impl Pair {
    /// Whether the pair belongs to this owner and broker id.
    #[inline]
    pub(crate) fn is(&self, owner: u32, broker: Guid) -> bool {
        self.owner == owner && self.broker == broker
    }

    pub(crate) fn cell(&self) -> Cell {
        Cell { broker: self.broker, target: self.target, mirror: NONE, action: self.action }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_finished_or_names_what_is_next() {
        for next in Next::ALL {
            assert_eq!(Action::next(next).next_of(), Some(next));
        }
        for outcome in 0..5 {
            let action = Action { outcome, reason: 0, step: 1, flags: u8::MAX >> 1 };
            assert_eq!(action.next_of(), None);
        }
    }

    #[test]
    fn entries_pairs_and_cells_fill_cache_lines() {
        assert_eq!((size_of::<Entry>(), size_of::<Pair>(), size_of::<Cell>()), (128, 32, 32));
    }
}
