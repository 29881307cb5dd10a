//! The server's configuration, written from the table of rights.

use std::fmt::Write as _;

use schemas::subjects::EVENT_CONSUMER;

use super::rights::{self, ENGINE_ALL, FOLLOW, NatsRights, ROLES};

const HEAD: &str = "\
# Who may say and hear what: accounts and users by nkey. Included by cluster.conf; nats.conf says how it can be used there, too.
#
# Written by `postrider nats-user accounts`, from the table in ops/cli/src/nats_user/rights.rs: change it there.
#
# Only public keys stand here, and they come from the environment (POSTRIDER_NKEY_…); a user's seed is a secret of its process,
# in the file that nats-credentials names. `postrider nats-user stage <name>` makes a pair. One process that runs several stages
# needs a user with the rights of all of them: ENGINE_ALL below.
#
# ops/nats/try.py starts three servers with this file and tries what is allowed and what is forbidden.

accounts {
    # The engine. Streams live here, and nobody else's client is in this account.
    ENGINE {
        jetstream: enabled
        # What products reach of it: a request goes in (and is answered), events come out. Everything else does not exist for them.
        exports: [
            { service: \"mail.v1.request.>\", accounts: [PRODUCTS] }
            { service: \"mail.v1.api.>\", accounts: [PRODUCTS] }
            # Which calls there are, and what they look like: every ingress process answers.
            { service: \"$SRV.>\", accounts: [PRODUCTS], response_type: \"stream\" }
            { stream: \"mail.v1.event.>\", accounts: [PRODUCTS] }
            # A product's durable consumer: pulled from, acknowledged, asked how far it is. Only the ingress makes one
            # (`mail.v1.api.<product>.<environment>.events.consumer`), so that none is aimed at anything.
            { service: \"$JS.API.CONSUMER.INFO.MAIL_EVENTS.*\", accounts: [PRODUCTS] }
            { service: \"$JS.API.CONSUMER.MSG.NEXT.MAIL_EVENTS.*\", accounts: [PRODUCTS], response_type: \"stream\" }
            { service: \"$JS.ACK.MAIL_EVENTS.>\", accounts: [PRODUCTS] }
        ]
        users: [
            # Every process may look at streams, and make those in memory; only operators make and change the others, purge or
            # delete: after a lost store, and at each upgrade, `postrider streams apply`. What a process pulls and what it is answered comes to its own inbox,
            # `_INBOX_<name>`, where no other may listen.
";

const TAIL: &str = "\
        ]
    }

    # The products' own programs. No JetStream here: a reply subject they name is one of this account, so that no request of theirs
    # can be answered into the engine's subjects or into the API of its streams.
    PRODUCTS {
        imports: [
            { service: { account: ENGINE, subject: \"mail.v1.request.>\" } }
            { service: { account: ENGINE, subject: \"mail.v1.api.>\" } }
            { service: { account: ENGINE, subject: \"$SRV.>\" } }
            { stream: { account: ENGINE, subject: \"mail.v1.event.>\" } }
            # Their clients are given the prefix mail.v1.follow instead of $JS.API, under which this account has an interface of its
            # own that says there is no JetStream.
            { service: { account: ENGINE, subject: \"$JS.API.CONSUMER.INFO.MAIL_EVENTS.*\" }, to: \"mail.v1.follow.CONSUMER.INFO.MAIL_EVENTS.*\" }
            { service: { account: ENGINE, subject: \"$JS.API.CONSUMER.MSG.NEXT.MAIL_EVENTS.*\" }, to: \"mail.v1.follow.CONSUMER.MSG.NEXT.MAIL_EVENTS.*\" }
            { service: { account: ENGINE, subject: \"$JS.ACK.MAIL_EVENTS.>\" } }
        ]
        include products.conf
    }

    # The servers' own account: `nats server report`, monitoring.
    SYS {
        users: [{ nkey: $POSTRIDER_NKEY_SYS }]
    }
}
system_account: SYS
";

/// The whole of `accounts.conf`.
pub(super) fn accounts() -> String {
    let mut text = HEAD.to_owned();
    for role in ROLES {
        let _ = writeln!(text, "            # {}: {}", role.name, role.about);
        text.push_str(&user(&variable(role.name), &role.rights()));
    }
    text.push_str("            # engine_all: `postrider all`, or several stages in one process\n");
    text.push_str(&user(&variable(ENGINE_ALL), &rights::engine_all()));
    text.push_str(
        "            # operators: `postrider streams`, `postrider dead`, the pause switches, the nats tool. People, with a seed each; revoke by\n\
         \x20           # leaving it out.\n",
    );
    text.push_str(&user(&variable("operator"), &rights::operator()));
    text.push_str(TAIL);
    text
}

/// Where the servers find a user's public key.
pub(super) fn variable(name: &str) -> String {
    format!("$POSTRIDER_NKEY_{}", name.to_uppercase())
}

/// One user of a product, for `products.conf`.
pub(super) fn product(product: &str, environment: &str, consumers: &[String], nkey: &str) -> String {
    let inbox = rights::inbox(product, environment);
    let mut text = format!(
        "            # {product}, {environment}: may ask in its own name, hear what happened to its own mail, and nothing else. Its client sets the\n\
         \x20           # inbox prefix `{inbox}` (nats-py: inbox_prefix; nats.js: inboxPrefix; nats.go: CustomInboxPrefix),\n\
         \x20           # so that nobody else can hear the answers, and `{FOLLOW}` as the prefix of JetStream's interface.\n"
    );
    text.push_str(&user(nkey, &rights::product(product, environment, consumers)));
    text
}

/// The template a product's user is filled into by hand.
pub(super) fn template() -> String {
    product("@PRODUCT@", "@ENVIRONMENT@", &[EVENT_CONSUMER.to_owned()], "@NKEY@")
}

fn user(nkey: &str, rights: &NatsRights) -> String {
    let mut text = format!("            {{ nkey: {nkey}, permissions: {{\n                publish: {{ allow: [\n");
    for subject in &rights.publish {
        let _ = writeln!(text, "                    \"{subject}\"");
    }
    text.push_str("                ] }\n                subscribe: { allow: [");
    let heard: Vec<String> = rights.subscribe.iter().map(|subject| format!("\"{subject}\"")).collect();
    let _ = writeln!(text, "{}] }}", heard.join(", "));
    if rights.responds {
        text.push_str("                allow_responses: true\n");
    }
    text.push_str("            } }\n");
    text
}

/// `products.conf` with one more user.
pub(super) fn with_product(products: &str, user: &str) -> Option<String> {
    let end = products.rfind(']')?;
    let (before, after) = products.split_at(end);
    products.contains("users: [").then(|| format!("{}\n{user}{after}", before.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// What is shipped is what the table says. `UPDATE=1` writes it.
    fn is_shipped(name: &str, made: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nats").join(name);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, made).unwrap();
        }
        let shipped = std::fs::read_to_string(&path).unwrap();
        assert!(
            shipped == made,
            "ops/nats/{name} is not what the table of rights makes: run with UPDATE=1 and commit it"
        );
    }

    #[test]
    fn the_shipped_accounts_are_those_of_the_table() {
        is_shipped("accounts.conf", &accounts());
    }

    #[test]
    fn the_shipped_template_is_that_of_the_table() {
        is_shipped("product-user.template", &template());
    }

    #[test]
    fn a_user_is_put_between_the_brackets() {
        let first = with_product("# Users.\nusers: []\n", "  { nkey: A }\n").unwrap();
        assert_eq!(first, "# Users.\nusers: [\n  { nkey: A }\n]\n");
        let second = with_product(&first, "  { nkey: B }\n").unwrap();
        assert_eq!(second, "# Users.\nusers: [\n  { nkey: A }\n  { nkey: B }\n]\n");
        assert_eq!(with_product("nothing", "  { nkey: A }\n"), None);
    }
}
