//! The network address of a request's client.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::extract::FromRequestParts;
use http::{HeaderMap, header::FORWARDED, request::Parts};
use ipnet::IpNet;
use tokio::net::TcpStream;

use crate::state::Ingress;

/// Proxies one request may have passed; what is written before them is not read.
const HOPS_MAX: usize = 16;

/// The client of a request: the other end of the connection or, if that is one of `trusted-proxies`, the address in its forwarding headers.
/// Forwarding headers of other clients are ignored: any client can send them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peer(Option<IpAddr>);

impl Peer {
    /// The other end of a connection.
    pub fn of(stream: &TcpStream) -> Self {
        Self(stream.peer_addr().ok().map(|address| address.ip().to_canonical()))
    }

    /// The client of a request.
    pub fn of_request(ingress: &Ingress, parts: &Parts) -> Self {
        let near = parts.extensions.get::<Self>().copied().unwrap_or_default();
        near.behind(&ingress.settings.trusted_proxies, &parts.headers)
    }

    /// Its address, where it is known.
    pub fn ip(self) -> Option<IpAddr> {
        self.0
    }

    /// Looks behind the proxies. Each writes the address it was called from to the end, so the chain is read from there, as far
    /// as it was written by proxies that are trusted.
    fn behind(self, trusted: &[IpNet], headers: &HeaderMap) -> Self {
        let is_trusted = |ip: &IpAddr| trusted.iter().any(|net| net.contains(ip));
        let Some(near) = self.0.filter(is_trusted) else { return self };
        let walk = |hops: &[Option<IpAddr>]| {
            let mut at = near;
            for hop in hops.iter().rev().take(HOPS_MAX) {
                match hop {
                    Some(ip) if is_trusted(ip) => at = *ip,
                    Some(ip) => return *ip,
                    // Hidden or unreadable: the last known hop is the client.
                    None => break,
                }
            }
            at
        };
        let (listed, forwarded) = (listed(headers), forwarded(headers));
        let found = match (listed.is_empty(), forwarded.is_empty()) {
            (_, true) => walk(&listed),
            (true, false) => walk(&forwarded),
            // A proxy that writes one header forwards the other as received. Unless they agree, neither is trusted.
            (false, false) => Some(walk(&listed)).filter(|ip| *ip == walk(&forwarded)).unwrap_or(near),
        };
        Self(Some(found))
    }
}

/// The hops of `X-Forwarded-For`, in the order of the header.
fn listed(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    let values = headers.get_all("x-forwarded-for").iter();
    values.flat_map(|value| value.to_str().unwrap_or("?").split(',')).map(address).collect()
}

/// The hops of `Forwarded` (RFC 7239 §4), in the order of the header.
fn forwarded(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    let values = headers.get_all(FORWARDED).iter();
    values
        .flat_map(|value| value.to_str().unwrap_or("?").split(','))
        .map(|element| {
            let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
            let (_, node) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
            address(node.trim().trim_matches('"'))
        })
        .collect()
}

/// An address, with or without a port, IPv6 with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(text, |(inside, _)| inside);
    let ip = bare.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    ip.ok().map(|ip: IpAddr| ip.to_canonical())
}

impl FromRequestParts<Arc<Ingress>> for Peer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, ingress: &Arc<Ingress>) -> Result<Self, Infallible> {
        Ok(Self::of_request(ingress, parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const XFF: &str = "x-forwarded-for";
    const FWD: &str = "forwarded";

    #[rstest]
    #[case::no_proxy("198.51.100.7", &[(XFF, "203.0.113.9")], "198.51.100.7")]
    #[case::nothing_said("10.0.0.1", &[], "10.0.0.1")]
    #[case::one_proxy("10.0.0.1", &[(XFF, "203.0.113.9")], "203.0.113.9")]
    #[case::two_proxies("10.0.0.1", &[(XFF, "203.0.113.9, 10.0.0.2")], "203.0.113.9")]
    #[case::what_the_client_wrote_itself("10.0.0.1", &[(XFF, "1.1.1.1, 203.0.113.9")], "203.0.113.9")]
    #[case::the_client_claims_to_be_a_proxy("10.0.0.1", &[(XFF, "1.1.1.1, 10.0.0.9, 203.0.113.9")], "203.0.113.9")]
    #[case::several_lines("10.0.0.1", &[(XFF, "1.1.1.1"), (XFF, "203.0.113.9"), (XFF, "10.0.0.2")], "203.0.113.9")]
    #[case::only_proxies("10.0.0.1", &[(XFF, "10.0.0.3, 10.0.0.2")], "10.0.0.3")]
    #[case::hidden("10.0.0.1", &[(XFF, "203.0.113.9, unknown, 10.0.0.2")], "10.0.0.2")]
    #[case::with_a_port("10.0.0.1", &[(XFF, "203.0.113.9:1234")], "203.0.113.9")]
    #[case::ipv6("10.0.0.1", &[(XFF, "2001:db8::1")], "2001:db8::1")]
    #[case::ipv6_with_a_port("10.0.0.1", &[(XFF, "[2001:db8::1]:1234")], "2001:db8::1")]
    #[case::mapped("::ffff:10.0.0.1", &[(XFF, "::ffff:203.0.113.9")], "203.0.113.9")]
    #[case::ipv6_proxy("fd00::1", &[(XFF, "203.0.113.9")], "203.0.113.9")]
    #[case::not_ascii("10.0.0.1", &[(XFF, "\u{e9}")], "10.0.0.1")]
    #[case::empty("10.0.0.1", &[(XFF, "")], "10.0.0.1")]
    #[case::forwarded("10.0.0.1", &[(FWD, "for=203.0.113.9;proto=https")], "203.0.113.9")]
    #[case::forwarded_chain("10.0.0.1", &[(FWD, "for=1.1.1.1, For=\"[2001:db8::1]:4711\", for=10.0.0.2")], "2001:db8::1")]
    #[case::forwarded_hidden("10.0.0.1", &[(FWD, "for=203.0.113.9, for=_secret")], "10.0.0.1")]
    #[case::forwarded_without_for("10.0.0.1", &[(FWD, "by=203.0.113.9")], "10.0.0.1")]
    #[case::both_agree("10.0.0.1", &[(FWD, "for=203.0.113.9"), (XFF, "203.0.113.9")], "203.0.113.9")]
    #[case::both_differ("10.0.0.1", &[(FWD, "for=1.1.1.1"), (XFF, "203.0.113.9")], "10.0.0.1")]
    fn an_address_is_believed_from_trusted_proxies_only(
        #[case] near: &str,
        #[case] headers: &[(&'static str, &str)],
        #[case] client: &str,
    ) {
        let trusted: Vec<IpNet> = ["10.0.0.0/8", "fd00::/8"].iter().map(|net| net.parse().unwrap()).collect();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let near = Peer(Some(near.parse::<IpAddr>().unwrap().to_canonical()));
        assert_eq!(near.behind(&trusted, &map).ip(), Some(client.parse().unwrap()));
        assert_eq!(near.behind(&[], &map).ip(), near.ip(), "nobody is trusted unless it is set");
    }

    #[test]
    fn a_chain_is_read_only_so_far() {
        let trusted = ["10.0.0.0/8".parse().unwrap()];
        let mut map = HeaderMap::new();
        map.insert(XFF, format!("203.0.113.9{}", ", 10.0.0.2".repeat(1_000)).parse().unwrap());
        assert_eq!(
            Peer(Some("10.0.0.1".parse().unwrap())).behind(&trusted, &map).ip(),
            Some("10.0.0.2".parse().unwrap())
        );
    }
}
