//! CPU and memory of processes, from /proc.

use std::{collections::BTreeSet, fs};

/// Linux has reported 100 to user space on every architecture for decades (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system CPU seconds a process has used; with those of its ended children, which Postgres' postmaster collects.
pub fn cpu_seconds(pid: u32) -> f64 {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0.0 };
    let Some((_, rest)) = stat.rsplit_once(") ") else { return 0.0 };
    let fields: Vec<&str> = rest.split(' ').collect();
    // Fields 14 to 17 of proc(5), counted from 1 with pid and name: utime, stime, cutime, cstime.
    fields.get(11..15).unwrap_or_default().iter().filter_map(|field| field.parse::<f64>().ok()).sum::<f64>()
        / TICKS_PER_SECOND
}

/// A process and all that descend from it, now.
pub fn family(pid: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([pid]);
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (_, rest) = stat.rsplit_once(") ")?;
            Some((pid, rest.split(' ').nth(1)?.parse().ok()?))
        })
        .collect();
    loop {
        let before = found.len();
        found.extend(
            parents.iter().filter(|(_, parent)| found.contains(parent)).map(|(pid, _)| *pid).collect::<Vec<_>>(),
        );
        if found.len() == before {
            return found;
        }
    }
}

/// CPU seconds of a process and its living descendants.
pub fn family_cpu_seconds(pid: u32) -> f64 {
    family(pid).into_iter().map(cpu_seconds).sum()
}

/// The most memory a process has held at once, in MiB.
pub fn peak_mib(pid: u32) -> f64 {
    status_kib(pid, "VmHWM:") / 1024.0
}

/// Memory of its own that a process holds now, in MiB (without shared pages).
pub fn own_mib(pid: u32) -> f64 {
    status_kib(pid, "RssAnon:") / 1024.0
}

fn status_kib(pid: u32, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok())
        .unwrap_or(0.0)
}
