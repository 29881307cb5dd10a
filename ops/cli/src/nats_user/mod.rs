//! `postrider nats-user`: users of the NATS servers, by nkey, with their rights.
//!
//! The seed is written to a file only its owner can read and is never printed; the server's configuration gets the public half.

mod conf;
mod rights;

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use clap::Subcommand;
use nkeys::KeyPair;
use schemas::{
    Environment,
    subjects::{CONSUMER_NAME_MAX, EVENT_CONSUMER, event_consumer, is_consumer_name},
};
use serde_json::json;

use crate::{
    key::{environment, product},
    operator,
};

/// Users of the NATS servers: keys, and the configuration with their rights.
#[derive(Debug, Subcommand)]
pub enum NatsUserCommand {
    /// A product's user in one environment: publishes its requests and calls, receives its events.
    Product(Product),
    /// The user of a process: audience … sequencing, ingress, `engine_all` (all of them), operator, sys.
    Stage(ProcessUser),
    /// The servers' accounts.conf, with every process's rights.
    Accounts,
    /// The shape of a product's user.
    Template,
}

#[derive(Debug, clap::Args)]
pub struct Product {
    /// The product's slug.
    #[arg(value_parser = product)]
    product: String,
    /// production or sandbox.
    #[arg(value_parser = environment)]
    environment: Environment,
    /// Durable consumers of its events that it may pull from. Its program makes them by the call `events.consumer`.
    #[arg(long = "consumer", value_name = "NAME", value_delimiter = ',', default_values_t = [EVENT_CONSUMER.to_owned()])]
    consumers: Vec<String>,
    /// Adds the user to this products.conf; the servers apply it when they reload.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    pair: Pair,
}

#[derive(Debug, clap::Args)]
pub struct ProcessUser {
    /// The process.
    name: String,
    #[command(flatten)]
    pair: Pair,
}

#[derive(Debug, clap::Args)]
struct Pair {
    /// Where the seed is written; the file must not be there. Left out: `<name>.seed` here.
    #[arg(long, value_name = "FILE", conflicts_with = "public_key")]
    seed: Option<PathBuf>,
    /// Generates no key: the owner has one and provides its public half only.
    #[arg(long, value_name = "U…")]
    public_key: Option<String>,
}

pub fn run(command: NatsUserCommand) -> anyhow::Result<()> {
    match command {
        NatsUserCommand::Product(product) => return add_product(&product),
        NatsUserCommand::Stage(stage) => return add_stage(&stage),
        NatsUserCommand::Accounts => print!("{}", conf::accounts()),
        NatsUserCommand::Template => print!("{}", conf::template()),
    }
    Ok(())
}

fn add_product(asked: &Product) -> anyhow::Result<()> {
    if let Some(bad) = asked.consumers.iter().find(|name| !is_consumer_name(name)) {
        bail!("{bad:?} is no name of a consumer: 1 to {CONSUMER_NAME_MAX} of a-z, 0-9 and dashes");
    }
    let environment = asked.environment.as_str();
    let made = asked.pair.make(&format!("{}-{environment}", asked.product))?;
    let user = conf::product(&asked.product, environment, &asked.consumers, &made.public_key);
    made.add(asked.config.as_deref(), &user)?;
    let durables: Vec<String> =
        asked.consumers.iter().map(|name| event_consumer(&asked.product, environment, name)).collect();
    let inbox = rights::inbox(&asked.product, environment);
    let record = json!({
        "product": asked.product, "environment": environment, "public_key": made.public_key, "seed_file": made.seed_file(),
        "inbox_prefix": inbox, "api_prefix": rights::FOLLOW, "consumers": durables, "config": asked.config, "user": user,
    });
    let seed =
        made.seed_file().map(|path| format!("seed          {} (0600; it is the product's secret)\n", path.display()));
    let next = match &asked.config {
        Some(path) => {
            format!("The user stands in {}. Now let the servers read it: nats-server --signal reload", path.display())
        }
        None => format!(
            "Put this between the brackets of `users: [ ]` in products.conf, and let the servers reload:\n\n{}",
            user.trim_end()
        ),
    };
    let text = format!(
        "public key    {}\n{}inbox prefix  {inbox}\nAPI prefix    {}\nconsumers     {}\n\n{next}",
        made.public_key,
        seed.unwrap_or_default(),
        rights::FOLLOW,
        durables.join(", "),
    );
    operator::print_result(&record, &text);
    Ok(())
}

fn add_stage(asked: &ProcessUser) -> anyhow::Result<()> {
    let names = || rights::ROLES.iter().map(|role| role.name).chain([rights::ENGINE_ALL, "operator", "sys"]);
    if !names().any(|name| name == asked.name) {
        bail!("{} is none of {}", asked.name, names().collect::<Vec<_>>().join(", "));
    }
    let made = asked.pair.make(&asked.name)?;
    made.write_seed()?;
    let variable = conf::variable(&asked.name).trim_start_matches('$').to_owned();
    let record = json!({
        "name": asked.name, "public_key": made.public_key, "seed_file": made.seed_file(), "variable": variable,
    });
    // The first line alone can be put into the servers' environment.
    let mut text = format!("{variable}={}", made.public_key);
    if let Some(seed) = made.seed_file() {
        text += &format!("\n# its process: --nats-credentials {}", seed.display());
    }
    operator::print_result(&record, &text);
    Ok(())
}

/// A user's key: its public half, and the seed with the file it is written to.
struct Made {
    public_key: String,
    seed: Option<(PathBuf, String)>,
}

impl Made {
    fn seed_file(&self) -> Option<&Path> {
        self.seed.as_ref().map(|(path, _)| path.as_path())
    }

    /// Writes the seed, if it was made here, to a new file that only the user can read.
    fn write_seed(&self) -> anyhow::Result<()> {
        let Some((path, seed)) = &self.seed else { return Ok(()) };
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        file.and_then(|mut file| writeln!(file, "{seed}")).with_context(|| format!("{}", path.display()))
    }

    /// Writes the seed, and the user into products.conf if one is named. Neither, if the user cannot be put there.
    fn add(&self, config: Option<&Path>, user: &str) -> anyhow::Result<()> {
        let Some(path) = config else { return self.write_seed() };
        let known = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        ensure!(!known.contains(&self.public_key), "{} has a user with {} already", path.display(), self.public_key);
        let with = conf::with_product(&known, user)
            .with_context(|| format!("{} has no `users: [ ]` to put it into", path.display()))?;
        self.write_seed()?;
        let replaced = replace_file(path, &with).with_context(|| format!("{}", path.display()));
        if let (Err(_), Some(seed)) = (&replaced, self.seed_file()) {
            // No server knows it, and the next try writes another one.
            fs::remove_file(seed).with_context(|| format!("{}", seed.display()))?;
        }
        replaced
    }
}

/// Replaces a file by a rename, so that a server that reloads and a crash see the old text or the new one. Its owner and its mode stay.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    // The file, and not a link to it.
    let path = path.canonicalize()?;
    let partial = path.with_extension("partial");
    let replaced = write_beside(&path, &partial, text).and_then(|()| fs::rename(&partial, &path));
    if replaced.is_err() {
        let _ = fs::remove_file(&partial);
    }
    replaced
}

fn write_beside(path: &Path, partial: &Path, text: &str) -> io::Result<()> {
    let before = fs::metadata(path)?;
    let mut file = fs::File::create(partial)?;
    file.write_all(text.as_bytes())?;
    let after = file.metadata()?;
    if (after.uid(), after.gid()) != (before.uid(), before.gid()) {
        std::os::unix::fs::fchown(&file, Some(before.uid()), Some(before.gid()))?;
    }
    file.set_permissions(before.permissions())?;
    file.sync_all()
}

impl Pair {
    fn make(&self, name: &str) -> anyhow::Result<Made> {
        if let Some(public_key) = &self.public_key {
            if !public_key.starts_with('U') || KeyPair::from_public_key(public_key).is_err() {
                bail!("{public_key} is not the public key of a user (U…)");
            }
            return Ok(Made { public_key: public_key.clone(), seed: None });
        }
        let pair = KeyPair::new_user();
        let path = self.seed.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.seed")));
        let seed = pair.seed().context("a new key has a seed")?;
        Ok(Made { public_key: pair.public_key(), seed: Some((path, seed)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_seed_is_for_its_owner_only_and_overwrites_nothing() {
        let path = std::env::temp_dir().join(format!("seed-{}", uuid::Uuid::now_v7().simple()));
        let pair = Pair { seed: Some(path.clone()), public_key: None };
        let made = pair.make("ignored").unwrap();
        made.write_seed().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let seed = fs::read_to_string(&path).unwrap();
        assert_eq!(KeyPair::from_seed(seed.trim()).unwrap().public_key(), made.public_key);
        assert!(pair.make("ignored").unwrap().write_seed().is_err(), "a second one does not replace it");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_user_is_added_with_its_seed_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("users-{}", uuid::Uuid::now_v7().simple()));
        fs::create_dir(&dir).unwrap();
        let (config, seed) = (dir.join("products.conf"), dir.join("shop.seed"));
        let made = Pair { seed: Some(seed.clone()), public_key: None }.make("ignored").unwrap();
        let user = format!("{{ nkey: {} }}\n", made.public_key);
        assert!(made.add(Some(&config), &user).is_err(), "the file is not there");
        fs::write(&config, "nothing").unwrap();
        assert!(made.add(Some(&config), &user).is_err(), "no place for users");
        assert!(!seed.exists());
        fs::write(&config, "users: []\n").unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o640)).unwrap();
        // In the way of the new text.
        let partial = config.with_extension("partial");
        fs::create_dir(&partial).unwrap();
        assert!(made.add(Some(&config), &user).is_err(), "the new text cannot be written");
        assert!(!seed.exists());
        assert_eq!(fs::read_to_string(&config).unwrap(), "users: []\n");
        fs::remove_dir(&partial).unwrap();
        let before = fs::metadata(&config).unwrap();
        made.add(Some(&config), &user).unwrap();
        let after = fs::metadata(&config).unwrap();
        assert_ne!(after.ino(), before.ino(), "it is replaced, not written in place");
        assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
        let with = fs::read_to_string(&config).unwrap();
        assert!(seed.exists() && with.contains(&made.public_key), "{with}");
        let again = Pair { seed: None, public_key: Some(made.public_key.clone()) }.make("ignored").unwrap();
        assert!(again.add(Some(&config), &user).is_err(), "one key is one user");
        assert_eq!(fs::read_to_string(&config).unwrap(), with);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "nothing else is left");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_public_key_is_a_users() {
        let given = |key: String| Pair { seed: None, public_key: Some(key) }.make("x").map(|made| made.seed.is_some());
        assert!(!given(KeyPair::new_user().public_key()).unwrap());
        assert!(given(KeyPair::new_account().public_key()).is_err());
        assert!(given("Unothing".to_owned()).is_err());
    }
}
