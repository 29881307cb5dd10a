//! Ports that stay ours.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::Mutex;

/// The reservations of this process. They end with it.
static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A loopback port that nothing listens on now and that no other caller was given: it is reserved as long as this
/// process lives, also against other processes that ask here. A program that asks the system for any port (`:0`)
/// does not get it either.
///
/// Taken from below the range the system gives to outgoing connections and for `:0`. A port of that range may go to a
/// client while the server restarts, even to the client that is trying to reconnect to it.
pub fn free_port() -> u16 {
    let range = quiet_ports();
    loop {
        let port = rand::random_range(range.clone());
        if reserve(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Whether the port is now this caller's. Two tests that pick one port by chance, before either listens on it, would
/// break each other. Where no lock can be made, chance decides.
fn reserve(port: u16) -> bool {
    let directory = std::env::temp_dir().join("postrider-ports");
    let lock = fs::create_dir_all(&directory).and_then(|()| File::create(directory.join(port.to_string())));
    let Ok(lock) = lock else { return true };
    let free = lock.try_lock().is_ok();
    if free {
        RESERVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(lock);
    }
    free
}

fn quiet_ports() -> Range<u16> {
    const LOWEST: u16 = 15_000;
    const HIGHEST: u16 = 32_000;
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let first_outgoing = range.and_then(|range| range.split_whitespace().next()?.parse().ok()).unwrap_or(HIGHEST);
    // A system that hands out nearly everything leaves no quiet range; then any port is as good.
    if first_outgoing < LOWEST + 1_000 { LOWEST..HIGHEST } else { LOWEST..first_outgoing.min(HIGHEST) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_to_two_callers() {
        let mut given: Vec<u16> = (0..200).map(|_| free_port()).collect();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), 200);
        assert!(!reserve(given[0]), "a port that was given is given again");
    }
}
