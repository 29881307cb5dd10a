//! The texts of the pages, one file per language. `{from}` is the sender's name, `{address}` the masked address of the recipient.

mod de;
mod en;
mod es;
mod fr;

/// All texts of one language.
#[derive(Debug)]
pub(super) struct PageTexts {
    /// The language, as `lang` names it.
    pub(super) lang: &'static str,
    /// The sender, if its name is unknown.
    pub(super) sender: &'static str,
    pub(super) unsubscribe: Unsubscribe,
    pub(super) preferences: Preferences,
    pub(super) confirmation: Confirmation,
    pub(super) no_link: PageText,
    /// An opt-out that could not be stored.
    pub(super) not_left: PageText,
    /// A choice that could not be stored.
    pub(super) not_stored: PageText,
}

/// The title and text of a page.
#[derive(Debug)]
pub(super) struct PageText {
    pub(super) title: &'static str,
    pub(super) text: &'static str,
}

/// The unsubscribe page.
#[derive(Debug)]
pub(super) struct Unsubscribe {
    pub(super) title: &'static str,
    pub(super) question: &'static str,
    pub(super) button: &'static str,
    /// Leads to the preferences page.
    pub(super) rather: &'static str,
    pub(super) done: PageText,
    /// Leads to the preferences page, afterwards.
    pub(super) changed_mind: &'static str,
}

/// The page behind the link of a confirmation mail.
#[derive(Debug)]
pub(super) struct Confirmation {
    pub(super) title: &'static str,
    pub(super) question: &'static str,
    pub(super) button: &'static str,
    pub(super) done: PageText,
    /// The link confirms nothing any more.
    pub(super) closed: PageText,
}

/// The preferences page.
#[derive(Debug)]
pub(super) struct Preferences {
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    pub(super) topics: &'static str,
    pub(super) choose: &'static str,
    pub(super) no_topics: &'static str,
    /// There may be more topics than the page shows.
    pub(super) more_topics: &'static str,
    pub(super) save: &'static str,
    pub(super) saved: &'static str,
    pub(super) everything: &'static str,
    pub(super) leave_about: &'static str,
    pub(super) leave: &'static str,
    pub(super) has_left: &'static str,
    pub(super) return_about: &'static str,
    pub(super) come_back: &'static str,
    pub(super) is_back: &'static str,
    /// Something holds that the recipient cannot lift.
    pub(super) held: &'static str,
    pub(super) not_understood: &'static str,
}

/// Every language, the first where nothing else is wanted.
pub(super) const ALL: [&PageTexts; 4] = [&en::TEXTS, &de::TEXTS, &fr::TEXTS, &es::TEXTS];
