//! Route addresses and their normal form (R6).

use std::net::Ipv6Addr;

const DEFAULT_PORT: u16 = 4022;
const SCHEME: &[u8] = b"tcp://";

/// The address of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Deliver in this instance.
    Local,
    /// Take the next hop from the service name (R23).
    Transport,
    /// A network address in its normal form, `TCP://host:port`.
    Network(String),
}

impl Address {
    /// Parses an address (R6); `None` if it is not valid.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.eq_ignore_ascii_case(b"LOCAL") {
            return Some(Self::Local);
        }
        if text.eq_ignore_ascii_case(b"TRANSPORT") {
            return Some(Self::Transport);
        }
        let rest = after_scheme(text)?;
        let rest = rest.strip_suffix(b"/").unwrap_or(rest);
        let (host, rest) = split_host(rest)?;
        let port = match rest {
            [] => DEFAULT_PORT,
            [b':', port @ ..] => parse_port(port)?,
            _ => return None,
        };
        Some(Self::Network(host.with_port(port)))
    }

    /// Returns the normal form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Local => "LOCAL",
            Self::Transport => "TRANSPORT",
            Self::Network(normal) => normal,
        }
    }
}

/// Returns the address at the start of a service name, `[TCP://]host:port[/...]`, in normal form (R23).
#[must_use]
pub fn next_hop_of_service_name(name: &[u8]) -> Option<String> {
    host_and_port_of(name).map(|(host, port)| host.with_port(port))
}

/// Whether a service name begins with an address (R23).
pub(crate) fn has_next_hop(name: &[u8]) -> bool {
    host_and_port_of(name).is_some()
}

fn host_and_port_of(name: &[u8]) -> Option<(Host<'_>, u16)> {
    // Most service names begin with `//` and have no address.
    if name.starts_with(b"/") {
        return None;
    }
    let (host, rest) = split_host(after_scheme(name).unwrap_or(name))?;
    let port = rest.strip_prefix(b":")?;
    let end = port.iter().position(|&byte| byte == b'/').unwrap_or(port.len());
    Some((host, parse_port(&port[..end])?))
}

/// The host of an address.
enum Host<'a> {
    Name(&'a str),
    Ipv6(Ipv6Addr),
}

impl Host<'_> {
    /// Returns the normal form of an address.
    fn with_port(&self, port: u16) -> String {
        match self {
            Self::Name(name) => format!("TCP://{}:{port}", name.to_ascii_lowercase()),
            Self::Ipv6(address) => format!("TCP://[{address}]:{port}"),
        }
    }
}

fn after_scheme(text: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = text.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(rest)
}

/// Returns the host and the text after it.
fn split_host(text: &[u8]) -> Option<(Host<'_>, &[u8])> {
    if let Some(bracketed) = text.strip_prefix(b"[") {
        let end = bracketed.iter().position(|&byte| byte == b']')?;
        let literal = std::str::from_utf8(&bracketed[..end]).ok()?;
        return Some((Host::Ipv6(literal.parse().ok()?), &bracketed[end + 1..]));
    }
    let is_host = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let end = text.iter().position(|byte| !is_host(byte)).unwrap_or(text.len());
    let (host, rest) = text.split_at(end);
    if host.split(|&byte| byte == b'.').any(<[u8]>::is_empty) {
        return None;
    }
    Some((Host::Name(std::str::from_utf8(host).ok()?), rest))
}

fn parse_port(digits: &[u8]) -> Option<u16> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let port = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (port > 0).then_some(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(text: &str) -> Option<String> {
        Address::parse(text.as_bytes()).map(|address| address.as_str().to_owned())
    }

    /// R6
    #[test]
    fn parses_addresses_to_normal_form() {
        for (text, expected) in [
            ("local", "LOCAL"),
            ("Transport", "TRANSPORT"),
            ("tcp://Host2.Adventure-Works.com:4022/", "TCP://host2.adventure-works.com:4022"),
            ("TCP://HOST_1", "TCP://host_1:4022"),
            ("TCP://10.0.0.1:04023", "TCP://10.0.0.1:4023"),
            ("tcp://[::1]:9/", "TCP://[::1]:9"),
            ("tcp://[0:0:0:0:0:0:0:1]", "TCP://[::1]:4022"),
        ] {
            assert_eq!(normal(text).as_deref(), Some(expected), "{text}");
        }
    }

    /// R6
    #[test]
    fn rejects_invalid_addresses() {
        for text in [
            "",
            " LOCAL",
            "LOCAL ",
            "host:4022",
            "TCP://",
            "TCP://:4022",
            "TCP://h:",
            "TCP://h:0",
            "TCP://h:65536",
            "TCP://h:4022//",
            "TCP://h:1/x",
            "TCP://a..b",
            "TCP://.a",
            "TCP://a.",
            "TCP://h :1",
            "http://h:1",
            "TCP://[::1",
            "TCP://[g]",
            "TCP://höst",
            "TCP://h:+1",
        ] {
            assert_eq!(normal(text), None, "{text}");
        }
    }

    /// R23
    #[test]
    fn reads_the_next_hop_from_a_service_name() {
        for (name, expected) in [
            ("tcp://Rushi.Desai.name:4256/MyService", Some("TCP://rushi.desai.name:4256")),
            ("host:1", Some("TCP://host:1")),
            ("host:1/", Some("TCP://host:1")),
            ("[::1]:7/x", Some("TCP://[::1]:7")),
            ("host/x", None),
            ("tcp://host/x", None),
            ("//Adventure-Works.com/Orders", None),
            ("host:1x", None),
            ("", None),
        ] {
            assert_eq!(next_hop_of_service_name(name.as_bytes()).as_deref(), expected, "{name}");
        }
    }
}
