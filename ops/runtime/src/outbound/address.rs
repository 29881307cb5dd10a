//! The IP addresses that a customer's URL may lead to: the public internet, and networks that the operator allows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// IPv4 networks that are not public (IANA special-purpose registry), each with its purpose.
const REFUSED_V4: &[(Ipv4Net, &str)] = &[
    (v4([0, 0, 0, 0], 8), "this network: Linux takes 0.0.0.0 for itself"),
    (v4([10, 0, 0, 0], 8), "private"),
    (v4([100, 64, 0, 0], 10), "carrier-grade NAT; cloud metadata (100.100.100.200)"),
    (v4([127, 0, 0, 0], 8), "loopback"),
    (v4([168, 63, 129, 16], 32), "a cloud's wire server"),
    (v4([169, 254, 0, 0], 16), "link-local; cloud metadata (169.254.169.254)"),
    (v4([172, 16, 0, 0], 12), "private"),
    (v4([192, 0, 0, 0], 24), "protocol assignments; cloud metadata (192.0.0.192)"),
    (v4([192, 0, 2, 0], 24), "documentation"),
    (v4([192, 88, 99, 0], 24), "6to4 relays"),
    (v4([192, 168, 0, 0], 16), "private"),
    (v4([198, 18, 0, 0], 15), "benchmarks"),
    (v4([198, 51, 100, 0], 24), "documentation"),
    (v4([203, 0, 113, 0], 24), "documentation"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    (v4([240, 0, 0, 0], 4), "reserved, broadcast"),
];

/// Of IPv6 only this is the public internet; loopback, unique local, link-local, site-local, multicast and the translations other
/// than NAT64's are outside of it …
const PUBLIC_V6: Ipv6Net = v6([0x2000, 0], 3);
/// … and of it these are not.
const REFUSED_V6: &[(Ipv6Net, &str)] = &[
    (v6([0x2001, 0], 23), "protocol assignments; Teredo wraps any IPv4 address"),
    (v6([0x2001, 0x0db8], 32), "documentation"),
    (v6([0x2002, 0], 16), "6to4 wraps any IPv4 address"),
    (v6([0x3fff, 0], 20), "documentation"),
];
/// NAT64 (RFC 6052): checked by the embedded IPv4 address, for hosts that reach IPv4 only by NAT64.
const NAT64: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

const fn v4(octets: [u8; 4], length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::from_octets(octets), length)
}

const fn v6(start: [u16; 2], length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(start[0], start[1], 0, 0, 0, 0, 0, 0), length)
}

/// True for an address of the public internet.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match plain(address) {
        IpAddr::V4(address) => !REFUSED_V4.iter().any(|(network, _)| network.contains(&address)),
        IpAddr::V6(address) => {
            PUBLIC_V6.contains(&address) && !REFUSED_V6.iter().any(|(network, _)| network.contains(&address))
        }
    }
}

/// True if the operator allows this private address, also by plain http.
#[must_use]
pub fn is_in(networks: &[IpNet], address: IpAddr) -> bool {
    let address = plain(address);
    networks.iter().any(|network| network.contains(&address))
}

/// True for an address of this machine. Nothing is sent: the system is asked for its source address, which equals the target for an
/// own address.
#[must_use]
pub fn is_own(address: IpAddr) -> bool {
    let address = plain(address);
    let any = if address.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    from.is_ok_and(|from| from.ip() == address)
}

/// The IPv4 address that is dialled, for an IPv6 address that embeds one.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(wrapped) = address else { return address };
    if let Some(mapped) = wrapped.to_ipv4_mapped() {
        return IpAddr::V4(mapped);
    }
    if NAT64.contains(&wrapped) {
        let [.., a, b, c, d] = wrapped.octets();
        return IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_internet_is_dialled() {
        let addresses = "
            0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254
            168.63.129.16 169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1
            192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1
            255.255.255.255 :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1
            64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 2001::1 2001:0:53aa:64c:0:fffe:f5ff:fffe 2001:db8::1
            2002:7f00:1:: 2002:a9fe:a9fe::1 3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fdff::1 fe80::1 fec0::1
            ff02::1";
        for address in addresses.split_whitespace() {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn the_public_internet_is() {
        let addresses = "
            1.1.1.1 8.8.8.8 93.184.216.34 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1 223.255.255.255
            2606:4700:4700::1111 2a00:1450:4001::1 2001:4860:4860::8888 ::ffff:8.8.8.8 64:ff9b::808:808";
        for address in addresses.split_whitespace() {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn allowed_networks_match_the_dialled_address() {
        let networks = ["127.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let allowed = |text: &str| is_in(&networks, text.parse().unwrap());
        assert!(allowed("127.0.0.1") && allowed("::ffff:127.0.0.1") && allowed("fd12::1"));
        assert!(!allowed("10.0.0.1") && !allowed("::1") && !allowed("::ffff:10.0.0.1"));
    }

    #[test]
    fn the_machine_knows_itself() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("192.0.2.77".parse().unwrap()));
    }
}
