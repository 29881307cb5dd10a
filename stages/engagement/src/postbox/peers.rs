//! How many connections each client has, so that one of them cannot take all the places.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
};

/// Open connections by client.
#[derive(Debug)]
pub(super) struct Peers {
    /// Most for one client; 0: as many as there are places.
    limit: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection that counts, until it is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    peers: Arc<Peers>,
    client: IpAddr,
}

impl Peers {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, open: Mutex::default() })
    }

    /// Counts a connection. `None`: the client has as many as it may.
    pub(super) fn count(self: &Arc<Self>, address: IpAddr) -> Option<Counted> {
        let client = client_of(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(client).or_default();
        if self.limit > 0 && *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(Counted { peers: Arc::clone(self), client })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.client);
            }
        }
    }
}

/// Whose an address is: a client of IPv6 has a network of 64 bits for itself.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        address => address,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_so_many_connections_and_no_more() {
        let peers = Peers::new(2);
        let address = |text: &str| text.parse().unwrap();
        let (first, _second) = (peers.count(address("192.0.2.1")), peers.count(address("::ffff:192.0.2.1")));
        assert!(peers.count(address("192.0.2.1")).is_none() && peers.count(address("192.0.2.2")).is_some());
        drop(first);
        assert!(peers.count(address("192.0.2.1")).is_some());
        let network: Vec<_> = (1..=2).map(|n| peers.count(address(&format!("2001:db8::{n}")))).collect();
        assert!(network.iter().all(Option::is_some) && peers.count(address("2001:db8::3")).is_none());
        drop(network);
        assert_eq!(peers.open.lock().unwrap().len(), 1, "who has gone is forgotten");
    }
}
