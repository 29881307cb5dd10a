//! The directory of a pair of servers: one owner at a time, gone afterwards when it is ephemeral.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::{fs::statvfs, process::geteuid};

/// Ephemeral directories carry this prefix, so that the ones a crash left behind are found.
const EPHEMERAL_PREFIX: &str = "postrider-run-";
/// Data that Postgres must own because we are root. A link in the data directory leads to it.
const OWNED_PREFIX: &str = "postrider-data-";
const LOCK_FILE: &str = "lock";
/// The file system in memory that Linux has.
const MEMORY: &str = "/dev/shm";
/// Room that it has to have: what is written there is memory.
const MEMORY_MIN_BYTES: u64 = 8 * 1024 * 1024 * 1024;
/// Servers of a process that was just killed need a moment to leave.
const LOCKED_FOR_AT_MOST: Duration = Duration::from_secs(10);

/// Time in which a directory surely gets its lock.
const NEW_FOR: Duration = Duration::from_secs(60);

/// A locked data directory.
#[derive(Debug)]
pub(crate) struct DataDirectory {
    root: PathBuf,
    ephemeral: bool,
    synced: bool,
    lock: File,
}

impl DataDirectory {
    pub(crate) fn open(kept: Option<&Path>, synced: bool) -> anyhow::Result<Self> {
        match kept {
            Some(root) => {
                fs::create_dir_all(root).with_context(|| format!("creating {}", root.display()))?;
                // Absolute, because the servers start in another directory.
                let root = root.canonicalize().with_context(|| format!("finding {}", root.display()))?;
                Self::claim(root, false, synced)
            }
            None => {
                sweep();
                Self::claim(new_directory(&base(synced), EPHEMERAL_PREFIX)?, true, synced)
            }
        }
    }

    fn claim(root: PathBuf, ephemeral: bool, synced: bool) -> anyhow::Result<Self> {
        let lock = open_lock(&root)?;
        let give_up = Instant::now() + LOCKED_FOR_AT_MOST;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { root, ephemeral, synced, lock }),
                Err(TryLockError::WouldBlock) if Instant::now() < give_up => thread::sleep(Duration::from_millis(50)),
                Err(TryLockError::WouldBlock) => {
                    bail!("the data directory {} is in use by another process", root.display())
                }
                Err(TryLockError::Error(source)) => {
                    return Err(source).with_context(|| format!("locking {}", root.display()));
                }
            }
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The lock, for a server to hold as well.
    pub(crate) fn share_lock(&self) -> anyhow::Result<File> {
        self.lock.try_clone().with_context(|| format!("locking {}", self.root.display()))
    }

    /// A directory below the root.
    pub(crate) fn directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(path)
    }

    /// A directory that a user other than root can reach. A kept data directory may stand where only root may
    /// go (`/root/…`), so the real one is then elsewhere and a link named `name` leads to it.
    pub(crate) fn reachable_directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        if self.ephemeral {
            return self.directory(name);
        }
        let link = self.root.join(name);
        if let Ok(existing) = link.canonicalize() {
            return Ok(existing);
        }
        let target = new_directory(&lasting(), OWNED_PREFIX)?;
        // A dangling link: the data was cleared away behind our back.
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&target, &link).with_context(|| format!("linking {}", link.display()))?;
        Ok(target)
    }
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        let deleted = match (self.ephemeral, self.synced) {
            (false, _) => Ok(()),
            (true, true) => fs::remove_dir_all(&self.root),
            (true, false) => spawn_deletion(&self.root),
        };
        if let Err(error) = deleted {
            tracing::warn!(directory = %self.root.display(), %error, "could not be deleted");
        }
    }
}

/// Starts a process that deletes a directory and outlives this one. A database for each test makes a million files, and deleting them
/// takes minutes.
fn spawn_deletion(directory: &Path) -> std::io::Result<()> {
    let mut delete = Command::new("rm");
    delete.arg("-rf").arg(directory).process_group(0);
    delete.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(drop)
}

fn open_lock(root: &Path) -> anyhow::Result<File> {
    let path = root.join(LOCK_FILE);
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))
}

/// Where ephemeral directories are made. A file system in memory makes and deletes the files of a database in half the time.
fn base(synced: bool) -> PathBuf {
    let in_memory = Path::new(MEMORY);
    let room = statvfs(in_memory).map_or(0, |system| system.f_bavail * system.f_frsize);
    if !synced && room >= MEMORY_MIN_BYTES { in_memory.to_owned() } else { lasting() }
}

/// Survives a reboot, is not in memory, and every user can reach it.
fn lasting() -> PathBuf {
    let base = PathBuf::from("/var/tmp");
    if base.is_dir() { base } else { std::env::temp_dir() }
}

fn new_directory(base: &Path, prefix: &str) -> anyhow::Result<PathBuf> {
    let path = base.join(format!("{prefix}{}", hex::encode(rand::random::<[u8; 8]>())));
    // As root, the user that Postgres runs as must get through; Postgres's own directory is closed to others.
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    DirBuilder::new().mode(mode).create(&path).with_context(|| format!("creating {}", path.display()))?;
    Ok(path)
}

/// Deletes the ephemeral directories of crashed runs: ours, and with no process left that holds the lock.
fn sweep() {
    let entries = [lasting(), MEMORY.into()].into_iter().filter_map(|base| fs::read_dir(base).ok()).flatten();
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let is_run = entry.file_name().to_str().is_some_and(|name| name.starts_with(EPHEMERAL_PREFIX));
        // Not through a link, and nothing of other users.
        let is_ours = metadata.is_dir() && metadata.uid() == geteuid().as_raw();
        // A new one may not be locked yet by the process that is making it.
        let is_new = metadata.modified().is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age < NEW_FOR));
        if is_run && is_ours && !is_new && is_abandoned(&entry.path()) {
            let _ = spawn_deletion(&entry.path());
        }
    }
}

/// True if no process holds the lock of the directory, or if its deletion was begun and took the lock along. Whatever else keeps the lock
/// from being looked at, such as too many open files, says nothing: a directory that is in use must not be deleted.
fn is_abandoned(directory: &Path) -> bool {
    match File::open(directory.join(LOCK_FILE)) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_abandoned_only_without_a_lock_or_its_holder() {
        let place = DataDirectory::open(None, true).unwrap();
        let root = place.root().to_owned();
        assert!(!is_abandoned(&root), "its lock is held");
        let no_directory = root.join(LOCK_FILE).join("below a file");
        assert!(!is_abandoned(&no_directory), "its lock cannot be looked at");
        fs::remove_file(root.join(LOCK_FILE)).unwrap();
        assert!(is_abandoned(&root), "its deletion was begun");
        drop(place);
        assert!(is_abandoned(&root));
    }
}
