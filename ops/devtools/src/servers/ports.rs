//! Ports that stay ours.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// A loopback port that nothing listens on now. It can be taken before you bind it: be ready to ask again.
///
/// Taken from below the range the system gives to outgoing connections. A port of that range may go to a client
/// while the server restarts, even to the client that is trying to reconnect to it.
pub fn free_port() -> u16 {
    let range = quiet_ports();
    loop {
        let port = rand::random_range(range.clone());
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

fn quiet_ports() -> Range<u16> {
    const LOWEST: u16 = 15_000;
    const HIGHEST: u16 = 32_000;
    let first_outgoing = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(HIGHEST);
    // A system that hands out nearly everything leaves no quiet range; then any port is as good.
    if first_outgoing < LOWEST + 1_000 { LOWEST..HIGHEST } else { LOWEST..first_outgoing.min(HIGHEST) }
}
