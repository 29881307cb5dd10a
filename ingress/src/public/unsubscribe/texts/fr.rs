//! French.

use super::{Confirmation, PageText, PageTexts, Preferences, Unsubscribe};

pub(super) const TEXTS: PageTexts = PageTexts {
    lang: "fr",
    sender: "cet expéditeur",
    unsubscribe: Unsubscribe {
        title: "Se désabonner",
        question: "Souhaitez-vous ne plus recevoir d’e-mails publicitaires de la part de {from} ? La demande prend effet immédiatement.",
        button: "Se désabonner",
        rather: "Choisir plutôt des thèmes",
        done: PageText {
            title: "Vous êtes désabonné(e)",
            text: "Vous ne recevrez plus d’e-mails publicitaires de la part de {from}. Les messages concernant vos commandes ou votre compte pourront encore vous parvenir.",
        },
        changed_mind: "Vous avez changé d’avis ? Vos préférences e-mail",
    },
    preferences: Preferences {
        title: "Préférences e-mail",
        about: "Ce que {address} peut recevoir de la part de {from}.",
        topics: "Thèmes",
        choose: "Cochez ce que vous souhaitez recevoir.",
        no_topics: "Il n’y a aucun thème à choisir.",
        more_topics: "Cette page affiche 100 thèmes au plus. Écrivez à l’expéditeur pour les autres, ou désabonnez-vous de tout ci-dessous.",
        save: "Enregistrer mes choix",
        saved: "Vos choix sont enregistrés.",
        everything: "Tous les e-mails publicitaires",
        leave_about: "Ne plus recevoir d’e-mails publicitaires, quel que soit le thème. Les messages concernant vos commandes ou votre compte pourront encore vous parvenir.",
        leave: "Se désabonner de tout",
        has_left: "Vous ne recevez aucun e-mail publicitaire de la part de {from}.",
        return_about: "Souhaitez-vous en recevoir de nouveau ? Votre consentement est enregistré lorsque vous appuyez sur le bouton.",
        come_back: "Se réabonner",
        is_back: "Vous êtes de nouveau abonné(e).",
        held: "Pour le moment, les e-mails publicitaires de la part de {from} ne peuvent pas vous être envoyés, pour une raison qui ne peut pas être modifiée ici. Merci de vous adresser à l’expéditeur.",
        not_understood: "Le formulaire contenait une erreur. Rien n’a été modifié ; veuillez réessayer.",
    },
    confirmation: Confirmation {
        title: "Confirmer votre inscription",
        question: "Souhaitez-vous recevoir des e-mails publicitaires de la part de {from} à l’adresse {address} ? Vous pouvez vous désabonner à tout moment.",
        button: "Oui, je m’abonne",
        done: PageText {
            title: "Vous êtes abonné(e)",
            text: "Vous recevrez désormais des e-mails publicitaires de la part de {from}. Chacun contient un lien pour se désabonner.",
        },
        closed: PageText {
            title: "Ce lien n’est plus valable",
            text: "Il a expiré, ou l’adresse ne reçoit plus d’e-mails publicitaires de la part de {from}. Si vous souhaitez toujours en recevoir, veuillez vous inscrire de nouveau.",
        },
    },
    no_link: PageText {
        title: "Ce lien ne fonctionne pas",
        text: "Il est peut-être trop ancien, ou un logiciel de messagerie l’a coupé en deux. Ouvrez-le de nouveau depuis le message lui-même.",
    },
    not_left: PageText {
        title: "Un problème est survenu",
        text: "Vous n’êtes <strong>pas encore</strong> désabonné(e). Veuillez réessayer dans une minute.",
    },
    not_stored: PageText {
        title: "Un problème est survenu",
        text: "Votre choix n’est <strong>pas encore</strong> enregistré. Veuillez réessayer dans une minute.",
    },
};
