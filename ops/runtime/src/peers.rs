//! Counts the connections of each client, so that one client cannot take all of them.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
};

/// Open connections by client.
#[derive(Debug)]
pub struct Peers {
    /// Most connections of one client; 0: no limit.
    limit: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// A counted connection; dropping it ends the count.
#[derive(Debug)]
pub struct CountedConnection {
    peers: Arc<Peers>,
    client: IpAddr,
}

impl Peers {
    /// So many connections for each client; 0: no limit.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, open: Mutex::default() })
    }

    /// Counts a connection. `None`: the client has as many as it may.
    pub fn count(self: &Arc<Self>, address: IpAddr) -> Option<CountedConnection> {
        let client = client_of(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(client).or_default();
        if self.limit > 0 && *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(CountedConnection { peers: Arc::clone(self), client })
    }
}

impl Drop for CountedConnection {
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

/// The client of an address: an IPv6 client is a network of 64 bits.
#[must_use]
pub fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_at_most_the_allowed_connections() {
        let peers = Peers::new(2);
        let address = |text: &str| text.parse().unwrap();
        let (first, _second) = (peers.count(address("192.0.2.1")), peers.count(address("::ffff:192.0.2.1")));
        assert!(peers.count(address("192.0.2.1")).is_none() && peers.count(address("192.0.2.2")).is_some());
        drop(first);
        assert!(peers.count(address("192.0.2.1")).is_some());
        let network: Vec<_> = (1..=2).map(|n| peers.count(address(&format!("2001:db8::{n}")))).collect();
        assert!(network.iter().all(Option::is_some) && peers.count(address("2001:db8::3")).is_none());
        drop(network);
        assert_eq!(peers.open.lock().unwrap().len(), 1, "a client without connections has no entry");
    }
}
